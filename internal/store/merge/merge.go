// Package merge makes a file tree from three: two trees that were made from a common base, and the
// base. A change by a single side is taken, equal changes of both sides are taken once, text files
// that both sides changed are merged line by line, and all other changes by both sides are
// conflicts. docs/merge.md contains the table of cases.
//
// The package uses trees and is independent of turns, sessions and stores.
package merge

import (
	"encoding/json"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Side is one of the two merged trees, or none.
type Side int

// The sides.
const (
	None   Side = 0
	Ours   Side = 1
	Theirs Side = 2
)

// String returns "ours", "theirs" or "none".
func (s Side) String() string {
	switch s {
	case Ours:
		return "ours"
	case Theirs:
		return "theirs"
	}
	return "none"
}

// ParseSide parses "ours" or "theirs".
func ParseSide(s string) (Side, error) {
	switch s {
	case "ours":
		return Ours, nil
	case "theirs":
		return Theirs, nil
	}
	return None, fmt.Errorf("%q is neither ours nor theirs", s)
}

// Options define the resolution of conflicts. The zero value decides nothing.
type Options struct {
	Default Side // decides every conflict that nothing else decides
	// decides the conflicts of a path and of the paths below it; paths are absolute, or "env:NAME",
	// or "cwd"
	Paths map[string]Side
	// writes conflict markers into text files; after Paths and before Default
	Markers bool

	// The names of the three trees in markers; empty: "ours", "base", "theirs".
	OursName, BaseName, TheirsName string
}

// A Kind classifies a conflict between two sides.
type Kind string

// The kinds of conflicts. If a kind names two changes, the first is by ours and the second by
// theirs.
const (
	KindContent      Kind = "content"       // both sides changed the content of a file
	KindAddAdd       Kind = "add/add"       // both sides added an entry, with different content
	KindModifyDelete Kind = "modify/delete" // ours changed what theirs deleted
	KindDeleteModify Kind = "delete/modify" // ours deleted what theirs changed
	KindType         Kind = "type"          // the entries are of different types
	// ours has a directory where theirs has another type
	KindDirFile      Kind = "directory/file"
	KindFileDir      Kind = "file/directory"      // the reverse of KindDirFile
	KindMode         Kind = "mode"                // permission bits
	KindOwner        Kind = "owner"               // user or group
	KindXattr        Kind = "xattr"               // an extended attribute
	KindSymlink      Kind = "symlink"             // both sides changed a symlink's target
	KindDevice       Kind = "device"              // both sides changed a device's numbers
	KindRenameRename Kind = "rename/rename(1to2)" // both sides renamed a file, to different names
	// the sides renamed two different files to this name
	KindRename2to1   Kind = "rename/rename(2to1)"
	KindRenameDelete Kind = "rename/delete" // ours renamed what theirs deleted
	KindDeleteRename Kind = "delete/rename" // ours deleted what theirs renamed
	// ours renamed a file to a name under which theirs added another
	KindRenameAdd Kind = "rename/add"
	KindAddRename Kind = "add/rename"        // the reverse of KindRenameAdd
	KindLinks     Kind = "links"             // names of a file that are no longer equal
	KindEnv       Kind = "environment"       // a variable's value
	KindCwd       Kind = "working directory" // the directory in which the next turn begins
)

// mirror returns the kind with exchanged sides.
func (k Kind) mirror() Kind {
	for _, p := range [][2]Kind{
		{KindModifyDelete, KindDeleteModify}, {KindDirFile, KindFileDir},
		{KindRenameDelete, KindDeleteRename}, {KindRenameAdd, KindAddRename},
	} {
		switch k {
		case p[0]:
			return p[1]
		case p[1]:
			return p[0]
		}
	}
	return k
}

// A Conflict is a disagreement between the sides. A path may have several conflicts, such as for
// its content and for its mode.
type Conflict struct {
	Path string // absolute, or "env:NAME" or "cwd"
	Kind Kind
	// The entries; nil: absent. A variable's value or the working directory is stored as a Target.
	Base, Ours, Theirs *tree.Entry
	// The entry's path if it differs from Path because of a rename.
	BasePath, OursPath, TheirsPath string
	// Detail names the difference, such as the name of an extended attribute; may be empty.
	Detail string
	// Resolution is the decision; empty: undecided.
	Resolution Resolution
}

// A Resolution is a conflict's decision.
type Resolution string

// The resolutions.
const (
	TookOurs   Resolution = "ours"
	TookTheirs Resolution = "theirs"
	GotMarkers Resolution = "markers"
)

// A Rename is a file that a side, or both, moved and that the merge followed.
type Rename struct {
	From string `json:"from"`
	To   string `json:"to"`
	Side string `json:"side"` // "ours", "theirs", or "both"
	// Similarity is the common part of the content in percent.
	Similarity int `json:"similarity"`
}

// A Result is the result of a merge.
type Result struct {
	Tree      turnstone.TreeRef // zero if there are Conflicts
	Conflicts []Conflict        // undecided conflicts, sorted by path
	Resolved  []Conflict        // conflicts that the options decided, sorted by path
	Merged    []string          // files that were merged by lines, sorted
	Renames   []Rename          // sorted by From
	// RenamesSkipped reports that there were too many files to detect renames with changed content.
	RenamesSkipped bool
	// Unused are the paths of Options.Paths that decided nothing, sorted.
	Unused []string
}

// ConflictJSON is a Conflict in JSON.
type ConflictJSON struct {
	Path       string       `json:"path"`
	Kind       Kind         `json:"kind"`
	Detail     string       `json:"detail,omitempty"`
	Base       *VersionJSON `json:"base"`
	Ours       *VersionJSON `json:"ours"`
	Theirs     *VersionJSON `json:"theirs"`
	Resolution Resolution   `json:"resolution,omitempty"`
}

// VersionJSON is a conflicting version.
type VersionJSON struct {
	Path   string           `json:"path,omitempty"`
	Type   string           `json:"type,omitempty"`
	Mode   string           `json:"mode,omitempty"`
	UID    uint32           `json:"uid"`
	GID    uint32           `json:"gid"`
	Size   int64            `json:"size,omitempty"`
	Target string           `json:"target,omitempty"`
	Major  uint32           `json:"major,omitempty"`
	Minor  uint32           `json:"minor,omitempty"`
	Digest turnstone.Digest `json:"digest"`
}

// MarshalJSON implements json.Marshaler: each version is represented by its digest.
func (c Conflict) MarshalJSON() ([]byte, error) {
	return json.Marshal(ConflictJSON{
		Path: c.Path, Kind: c.Kind, Detail: c.Detail, Resolution: c.Resolution,
		Base: version(c.Base, c.BasePath), Ours: version(c.Ours, c.OursPath),
		Theirs: version(c.Theirs, c.TheirsPath),
	})
}

func version(e *tree.Entry, path string) *VersionJSON {
	if e == nil {
		return nil
	}
	return &VersionJSON{
		Path: path, Type: typeName(e.Type), Mode: fmt.Sprintf("%04o", e.Mode),
		UID: e.UID, GID: e.GID,
		Size: e.Size, Target: e.Target, Major: e.Major, Minor: e.Minor, Digest: DigestOf(e),
	}
}

// DigestOf returns a digest of e's content: a file's content, a directory's FS hash, the digest of
// a symlink's target (or of a value) or of a device's numbers. For nil it is empty.
func DigestOf(e *tree.Entry) turnstone.Digest {
	switch {
	case e == nil:
		return ""
	case e.Type == tree.File:
		return e.Content.Digest
	case e.Type == tree.Dir:
		return e.Hash
	case e.Type == tree.Char || e.Type == tree.Block:
		return turnstone.DigestBytes(fmt.Appendf(nil, "%d:%d", e.Major, e.Minor))
	}
	return turnstone.DigestBytes([]byte(e.Target))
}

func typeName(t tree.Type) string {
	switch t {
	case tree.Dir:
		return "directory"
	case tree.File:
		return "file"
	case tree.Symlink:
		return "symlink"
	case tree.Char:
		return "character device"
	case tree.Block:
		return "block device"
	case tree.FIFO:
		return "fifo"
	}
	return ""
}
