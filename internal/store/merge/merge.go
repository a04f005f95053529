// Package merge makes a file tree from three: two trees that were made from a common base, and the
// base. A change by a single side is taken, equal changes of both sides are taken once, text files
// that both sides changed are merged line by line, and all other changes by both sides are
// conflicts. docs/merge.md contains the table of cases.
//
// The package uses trees and is independent of turns, sessions and stores.
package merge

import (
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options define the resolution of conflicts. The zero value decides nothing.
type Options struct {
	Default turnstone.Side // decides every conflict that nothing else decides
	// decides the conflicts of a path and of the paths below it; paths are absolute, or "env:NAME",
	// or "cwd"
	Paths map[string]turnstone.Side
	// writes conflict markers into text files; after Paths and before Default
	Markers bool

	// The names of the three trees in markers; empty: "ours", "base", "theirs".
	OursName, BaseName, TheirsName string
}

// mirrorOf returns the kind k with exchanged sides.
func mirrorOf(k turnstone.ConflictKind) turnstone.ConflictKind {
	for _, p := range [][2]turnstone.ConflictKind{
		{turnstone.ConflictModifyDelete, turnstone.ConflictDeleteModify},
		{turnstone.ConflictDirFile, turnstone.ConflictFileDir},
		{turnstone.ConflictRenameDelete, turnstone.ConflictDeleteRename},
		{turnstone.ConflictRenameAdd, turnstone.ConflictAddRename},
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
	Kind turnstone.ConflictKind
	// The entries; nil: absent. A variable's value or the working directory is stored as a Target.
	Base, Ours, Theirs *tree.Entry
	// The entry's path if it differs from Path because of a rename.
	BasePath, OursPath, TheirsPath string
	// Detail names the difference, such as the name of an extended attribute; may be empty.
	Detail string
	// Resolution is the decision; empty: undecided.
	Resolution turnstone.Resolution
}

// A Result is the result of a merge.
type Result struct {
	Tree      turnstone.TreeRef       // zero if there are Conflicts
	Conflicts []Conflict              // undecided conflicts, sorted by path
	Resolved  []Conflict              // conflicts that the options decided, sorted by path
	Merged    []string                // files that were merged by lines, sorted
	Renames   []turnstone.MergeRename // sorted by From
	// RenamesSkipped reports that there were too many files to detect renames with changed content.
	RenamesSkipped bool
	// Unused are the paths of Options.Paths that decided nothing, sorted.
	Unused []string
}

// Report returns c as users see it: each version is represented by its digest.
func (c Conflict) Report() turnstone.Conflict {
	return turnstone.Conflict{
		Path: c.Path, Kind: c.Kind, Detail: c.Detail, Resolution: c.Resolution,
		Base: version(c.Base, c.BasePath), Ours: version(c.Ours, c.OursPath),
		Theirs: version(c.Theirs, c.TheirsPath),
	}
}

func version(e *tree.Entry, path string) *turnstone.ConflictVersion {
	if e == nil {
		return nil
	}
	return &turnstone.ConflictVersion{
		Path: path, Type: typeName(e.Type), Mode: fmt.Sprintf("%04o", e.Mode),
		UID: e.UID, GID: e.GID,
		Size: e.Size, Target: e.Target, Major: e.Major, Minor: e.Minor, Digest: digestOf(e),
	}
}

// digestOf returns a digest of e's content: a file's content, a directory's FS hash, the digest of
// a symlink's target (or of a value) or of a device's numbers. For nil it is empty.
func digestOf(e *tree.Entry) turnstone.Digest {
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
