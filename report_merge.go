package turnstone

import "fmt"

// A Side is one of the two sides of a merge, or none.
type Side int

// The sides.
const (
	SideNone   Side = 0
	SideOurs   Side = 1
	SideTheirs Side = 2
)

// String returns "ours", "theirs" or "none".
func (s Side) String() string {
	switch s {
	case SideOurs:
		return "ours"
	case SideTheirs:
		return "theirs"
	}
	return "none"
}

// ParseSide parses "ours" or "theirs".
func ParseSide(s string) (Side, error) {
	switch s {
	case "ours":
		return SideOurs, nil
	case "theirs":
		return SideTheirs, nil
	}
	return SideNone, fmt.Errorf("%q is neither ours nor theirs", s)
}

// A ConflictKind classifies a conflict between two sides.
type ConflictKind string

// The kinds of conflicts. If a kind names two changes, the first is by ours and the second by
// theirs.
const (
	ConflictContent ConflictKind = "content" // both sides changed the content of a file
	// both sides added an entry, with different content
	ConflictAddAdd       ConflictKind = "add/add"
	ConflictModifyDelete ConflictKind = "modify/delete" // ours changed what theirs deleted
	ConflictDeleteModify ConflictKind = "delete/modify" // ours deleted what theirs changed
	ConflictType         ConflictKind = "type"          // the entries are of different types
	// ours has a directory where theirs has another type
	ConflictDirFile ConflictKind = "directory/file"
	ConflictFileDir ConflictKind = "file/directory" // the reverse of ConflictDirFile
	ConflictMode    ConflictKind = "mode"           // permission bits
	ConflictOwner   ConflictKind = "owner"          // user or group
	ConflictXattr   ConflictKind = "xattr"          // an extended attribute
	ConflictSymlink ConflictKind = "symlink"        // both sides changed a symlink's target
	ConflictDevice  ConflictKind = "device"         // both sides changed a device's numbers
	// both sides renamed a file, to different names
	ConflictRenameRename ConflictKind = "rename/rename(1to2)"
	// the sides renamed two different files to this name
	ConflictRename2to1   ConflictKind = "rename/rename(2to1)"
	ConflictRenameDelete ConflictKind = "rename/delete" // ours renamed what theirs deleted
	ConflictDeleteRename ConflictKind = "delete/rename" // ours deleted what theirs renamed
	// ours renamed a file to a name under which theirs added another
	ConflictRenameAdd ConflictKind = "rename/add"
	ConflictAddRename ConflictKind = "add/rename"        // the reverse of ConflictRenameAdd
	ConflictLinks     ConflictKind = "links"             // names of a file that are no longer equal
	ConflictEnv       ConflictKind = "environment"       // a variable's value
	ConflictCwd       ConflictKind = "working directory" // of the next turn
)

// A Resolution is a conflict's decision.
type Resolution string

// The resolutions.
const (
	TookOurs   Resolution = "ours"
	TookTheirs Resolution = "theirs"
	GotMarkers Resolution = "markers"
)

// A MergeRename is a file that a side, or both, moved and that the merge followed.
type MergeRename struct {
	From string `json:"from"`
	To   string `json:"to"`
	Side string `json:"side"` // "ours", "theirs", or "both"
	// Similarity is the common part of the content in percent.
	Similarity int `json:"similarity"`
}

// A Conflict is a disagreement between the sides of a merge. A path may have several, such as
// for its content and for its mode.
type Conflict struct {
	Path       string           `json:"path"` // absolute, or "env:NAME" or "cwd"
	Kind       ConflictKind     `json:"kind"`
	Detail     string           `json:"detail,omitempty"` // such as an extended attribute's name
	Base       *ConflictVersion `json:"base"`             // null: absent
	Ours       *ConflictVersion `json:"ours"`
	Theirs     *ConflictVersion `json:"theirs"`
	Resolution Resolution       `json:"resolution,omitempty"` // empty: undecided
}

// A ConflictVersion is one of the versions of a conflict.
type ConflictVersion struct {
	Path   string `json:"path,omitempty"` // if a rename changed it
	Type   string `json:"type,omitempty"`
	Mode   string `json:"mode,omitempty"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   int64  `json:"size,omitempty"`
	Target string `json:"target,omitempty"` // of a symlink; a variable's value
	Major  uint32 `json:"major,omitempty"`
	Minor  uint32 `json:"minor,omitempty"`
	Digest Digest `json:"digest"`
}

// A MergeOutcome is the outcome of a merge.
type MergeOutcome string

// The outcomes of a merge.
const (
	MergeDone        MergeOutcome = "merged"       // a turn was added; in a dry run: would be
	MergeFastForward MergeOutcome = "fast-forward" // the branch was moved; in a dry run: would be
	MergeUpToDate    MergeOutcome = "up-to-date"   // the branch contains the turn
	MergeConflicts   MergeOutcome = "conflicts"    // undecided: nothing was stored
)

// A MergeReport describes the result of a merge, or of its dry run.
type MergeReport struct {
	Outcome MergeOutcome `json:"outcome"`
	DryRun  bool         `json:"dry_run"`
	Session string       `json:"session"` // its name, or its ID if it has none
	Into    string       `json:"into"`
	Base    *MergeSide   `json:"base"` // null: they have no common ancestor
	Ours    *MergeSide   `json:"ours"` // null: the branch had no turn
	Theirs  *MergeSide   `json:"theirs"`

	ID     TurnID `json:"id,omitempty"` // of the new turn
	Number int    `json:"number,omitempty"`
	Branch string `json:"branch,omitempty"` // whose head it is
	// Branch is new because another turn has ended on Into meanwhile
	Diverged bool      `json:"diverged"`
	FSHash   Digest    `json:"fs_hash,omitempty"`
	Layer    LayerInfo `json:"layer"`         // against Ours
	Cwd      string    `json:"cwd,omitempty"` // the merged working directory
	// the preferred working directory, if it is not in the merged tree
	CwdGone string `json:"cwd_gone,omitempty"`
	Receipt string `json:"receipt,omitempty"`

	Conflicts []Conflict    `json:"conflicts"` // undecided
	Resolved  []Conflict    `json:"resolved"`
	Merged    []string      `json:"merged"` // files whose lines were merged
	Renames   []MergeRename `json:"renames"`
	// there were too many files to detect renames with changed content
	RenamesSkipped bool `json:"renames_skipped"`
}

// A MergeSide is one of the turns of a merge.
type MergeSide struct {
	ID     TurnID `json:"id"`
	Number int    `json:"number"`
	FSHash Digest `json:"fs_hash"`
}
