package turnstone

import (
	"time"
)

// DiffRequest describes a comparison.
type DiffRequest struct {
	From string // a turn
	// a turn; without a session, such as "explore", it is in From's; empty: compare From with its
	// parent's state
	To   string
	Stat bool // count the lines of texts
	Text bool // create patches of texts
	// Results also compares results, outputs and commands; it requires To.
	Results bool
}

// A StateDiff is the difference of two states.
type StateDiff struct {
	From  DiffSide     `json:"from"`
	To    DiffSide     `json:"to"`
	Files []FileChange `json:"files"` // by path
	Env   []EnvChange  `json:"env"`
	Cwd   *CwdChange   `json:"cwd,omitempty"` // nil if equal
	// Results is there if it was requested.
	Results *ResultsDiff `json:"results,omitempty"`
}

// A DiffSide is one of the two states.
type DiffSide struct {
	Turn   TurnID `json:"turn,omitempty"` // empty: the template's state, before any turn
	Number int    `json:"number,omitempty"`
	FSHash Digest `json:"fs_hash"`
}

// A ChangeStatus is the kind of a path's change, as in git.
type ChangeStatus string

// The kinds of changes.
const (
	ChangeAdded    ChangeStatus = "A"
	ChangeModified ChangeStatus = "M" // content or attributes
	ChangeDeleted  ChangeStatus = "D"
	ChangeRetyped  ChangeStatus = "T" // for example from a file to a symlink
	ChangeRenamed  ChangeStatus = "R" // the same content under another name
)

// A FileChange is a path that differs. Timestamps are not compared.
type FileChange struct {
	Path    string       `json:"path"`
	Status  ChangeStatus `json:"status"`
	OldPath string       `json:"old_path,omitempty"` // of a renamed file
	Old     *FileInfo    `json:"old,omitempty"`
	New     *FileInfo    `json:"new,omitempty"`
	// of a modified path: "content", "mode", "owner", "xattrs", "target", "device", "links"
	What   []string `json:"what,omitempty"`
	Plus   int      `json:"plus,omitempty"`  // lines, if requested
	Minus  int      `json:"minus,omitempty"` // lines
	Binary bool     `json:"binary,omitempty"`
	Patch  string   `json:"patch,omitempty"` // unified, as git writes it
}

// An EnvChange is one variable that differs.
type EnvChange struct {
	Name string  `json:"name"`
	Old  *string `json:"old"` // null if not set
	New  *string `json:"new"`
}

// A CwdChange is a working directory that differs.
type CwdChange struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// A FileInfo is one file of a state.
type FileInfo struct {
	Path   string    `json:"path"` // absolute
	Type   string    `json:"type"` // "dir", "file", "symlink", "char", "block", "fifo"
	Mode   Mode      `json:"mode"` // permission bits, with setuid, setgid and sticky
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	Size   int64     `json:"size"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty"`
	Digest Digest    `json:"digest,omitempty"` // of a file's content
}
