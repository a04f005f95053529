// Package merge makes one file tree of three: two that were made from a common
// base, and the base. What only one side changed is taken, what both changed in
// the same way is taken once, text files that both changed are merged line by
// line, and everything else that both changed is a conflict. docs/merge.md has
// the table of cases.
//
// The package knows trees and nothing of turns, sessions or stores.
package merge

import (
	"encoding/json"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Side is one of the two trees that are merged, or none of them.
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

// ParseSide reads "ours" or "theirs".
func ParseSide(s string) (Side, error) {
	switch s {
	case "ours":
		return Ours, nil
	case "theirs":
		return Theirs, nil
	}
	return None, fmt.Errorf("%q is neither ours nor theirs", s)
}

// Options say what is done with conflicts. The zero value decides nothing.
type Options struct {
	Default Side            // decides every conflict that nothing else decides
	Paths   map[string]Side // decides the conflicts of a path and of those below it; paths are absolute, or "env:NAME", or "cwd"
	Markers bool            // writes conflict markers into text files; comes after Paths and before Default

	// The names of the three in markers; empty: "ours", "base", "theirs".
	OursName, BaseName, TheirsName string
}

// A Kind says what two sides do not agree on.
type Kind string

// The kinds of conflicts. Where a kind names two things, the first is what ours
// did and the second what theirs did.
const (
	KindContent      Kind = "content"             // both changed the content of a file
	KindAddAdd       Kind = "add/add"             // both added something, with different content
	KindModifyDelete Kind = "modify/delete"       // ours changed what theirs deleted
	KindDeleteModify Kind = "delete/modify"       // ours deleted what theirs changed
	KindType         Kind = "type"                // they are of different types
	KindDirFile      Kind = "directory/file"      // ours has a directory where theirs has something else
	KindFileDir      Kind = "file/directory"      // the other way round
	KindMode         Kind = "mode"                // permission bits
	KindOwner        Kind = "owner"               // user or group
	KindXattr        Kind = "xattr"               // an extended attribute
	KindSymlink      Kind = "symlink"             // both changed where a symlink leads
	KindDevice       Kind = "device"              // both changed a device's numbers
	KindRenameRename Kind = "rename/rename(1to2)" // both renamed one file, to different names
	KindRename2to1   Kind = "rename/rename(2to1)" // both renamed a file to this name, two different ones
	KindRenameDelete Kind = "rename/delete"       // ours renamed what theirs deleted
	KindDeleteRename Kind = "delete/rename"       // ours deleted what theirs renamed
	KindRenameAdd    Kind = "rename/add"          // ours renamed a file to a name under which theirs added another
	KindAddRename    Kind = "add/rename"          // the other way round
	KindLinks        Kind = "links"               // names of one file that are no longer equal
	KindEnv          Kind = "environment"         // a variable's value
	KindCwd          Kind = "working directory"   // where the next turn begins
)

// mirror returns the kind as it is when the sides are exchanged.
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

// A Conflict is something on which the sides do not agree. A path may have several,
// as one for its content and one for its mode.
type Conflict struct {
	Path string // absolute; "env:NAME" and "cwd" for those
	Kind Kind
	// What is there; nil: nothing. The value of a variable or of the working
	// directory is a Target.
	Base, Ours, Theirs *tree.Entry
	// Where it is there, when it is not at Path: it was renamed.
	BasePath, OursPath, TheirsPath string
	// Detail says what exactly differs, as the name of an extended attribute; may be empty.
	Detail string
	// Resolution says how it was decided; empty: it was not.
	Resolution Resolution
}

// A Resolution is how a conflict was decided.
type Resolution string

// The resolutions.
const (
	TookOurs   Resolution = "ours"
	TookTheirs Resolution = "theirs"
	GotMarkers Resolution = "markers"
)

// A Rename is a file that one side, or both, moved and that was followed.
type Rename struct {
	From string `json:"from"`
	To   string `json:"to"`
	Side string `json:"side"` // "ours", "theirs", or "both"
	// Similarity is how much of the content is the same, in percent.
	Similarity int `json:"similarity"`
}

// A Result is what came of a merge.
type Result struct {
	Tree      tree.Ref   // zero when Conflicts is not empty
	Conflicts []Conflict // what nobody has decided; sorted by path
	Resolved  []Conflict // what the options have decided; sorted by path
	Merged    []string   // files whose lines were merged; sorted
	Renames   []Rename   // sorted by From
	// RenamesSkipped: there were so many files that renames with changed content
	// were not looked for.
	RenamesSkipped bool
	// Unused are the paths among Options.Paths that decided nothing; sorted.
	Unused []string
}

// ConflictJSON is a Conflict as JSON has it.
type ConflictJSON struct {
	Path       string       `json:"path"`
	Kind       Kind         `json:"kind"`
	Detail     string       `json:"detail,omitempty"`
	Base       *VersionJSON `json:"base"`
	Ours       *VersionJSON `json:"ours"`
	Theirs     *VersionJSON `json:"theirs"`
	Resolution Resolution   `json:"resolution,omitempty"`
}

// VersionJSON is one of the versions that conflict.
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

// MarshalJSON implements json.Marshaler: each version is given with its digest.
func (c Conflict) MarshalJSON() ([]byte, error) {
	return json.Marshal(ConflictJSON{
		Path: c.Path, Kind: c.Kind, Detail: c.Detail, Resolution: c.Resolution,
		Base: version(c.Base, c.BasePath), Ours: version(c.Ours, c.OursPath), Theirs: version(c.Theirs, c.TheirsPath),
	})
}

func version(e *tree.Entry, path string) *VersionJSON {
	if e == nil {
		return nil
	}
	return &VersionJSON{
		Path: path, Type: typeName(e.Type), Mode: fmt.Sprintf("%04o", e.Mode), UID: e.UID, GID: e.GID,
		Size: e.Size, Target: e.Target, Major: e.Major, Minor: e.Minor, Digest: DigestOf(e),
	}
}

// DigestOf returns a digest of what e holds: a file's content, a directory's FS
// hash, the digest of a symlink's target (or of a value), of a device's numbers.
// For nil it is empty.
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
