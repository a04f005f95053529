package turnstone

import "time"

// A Graph is a session with all its turns, branches and tags.
type Graph struct {
	Session  Session  `json:"session"`
	Turns    []Turn   `json:"turns"` // newest first
	Branches []Branch `json:"branches"`
	Tags     []Tag    `json:"tags"`
}

// A Session is a tree of turns.
type Session struct {
	ID      SessionID `json:"id"`
	Name    string    `json:"name,omitempty"` // empty: anonymous
	Created time.Time `json:"created"`
	// Domain is what seals the session's data; empty: it is not sealed.
	Domain DomainID `json:"domain,omitempty"`
}

// Label returns the display name of s: its name, or its ID if it has none.
func (s Session) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return string(s.ID)
}

// A TurnStatus reports whether a turn has ended.
type TurnStatus string

// The statuses of a turn.
const (
	TurnRunning TurnStatus = "running"
	TurnDone    TurnStatus = "done"
)

// A Turn is a node of a session's tree: one run of a document, or a merge.
type Turn struct {
	ID      TurnID    `json:"id"`
	Session SessionID `json:"session"`
	// in its session, from 1; greater than its parents' numbers
	Number  int        `json:"number"`
	Branch  string     `json:"branch"`  // the branch that it was added to
	Parents []TurnID   `json:"parents"` // two for a merge
	Kind    TurnKind   `json:"kind"`
	Title   string     `json:"title,omitempty"`
	Status  TurnStatus `json:"status"`
	Result  Result     `json:"result,omitempty"` // empty while the turn runs
	// empty while the turn runs, and if its executor died
	Record Digest `json:"record,omitempty"`
	State  Digest `json:"state,omitempty"` // empty if the turn left no state
	// Statement is the digest of the statement about the turn, which is the payload of the
	// envelope in the object Envelope. Both are empty if the turn is not signed.
	Statement Digest `json:"statement,omitempty"`
	Envelope  Digest `json:"envelope,omitempty"`

	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"` // zero while the turn runs

	Domain DomainID `json:"domain,omitempty"` // the session's
	// Locked reports that the domain's key is not at hand: title and state are missing.
	Locked bool `json:"locked,omitempty"`
}

// Interrupted reports whether t's executor died before it stored a record.
func (t Turn) Interrupted() bool { return t.Status == TurnDone && t.Record == "" }

// Parent returns t's first parent, or "".
func (t Turn) Parent() TurnID {
	if len(t.Parents) == 0 {
		return ""
	}
	return t.Parents[0]
}

// A Branch is a name for the newest turn of a line of turns.
type Branch struct {
	Session SessionID `json:"session"`
	Name    string    `json:"name"`
	Head    TurnID    `json:"head,omitempty"` // empty: no turn yet
	Created time.Time `json:"created"`
}

// A Tag is a permanent name for a turn.
type Tag struct {
	Session SessionID `json:"session"`
	Name    string    `json:"name"`
	Turn    TurnID    `json:"turn"`
	Created time.Time `json:"created"`
}

// A TurnKind is the origin of a turn.
type TurnKind string

// The kinds of turns.
const (
	TurnKindRun   TurnKind = "run"
	TurnKindMerge TurnKind = "merge"
)

// A SessionInfo is one session in a list.
type SessionInfo struct {
	Session
	Turns    int       `json:"turns"`
	Running  int       `json:"running"`
	Branches []string  `json:"branches"`
	Used     time.Time `json:"used"` // start of its newest turn, or time of its creation
	Title    string    `json:"title,omitempty"`
}

// ExportReport counts the exported data of a session.
type ExportReport struct {
	Session Session `json:"session"`
	Turns   int     `json:"turns"`
	Objects int     `json:"objects"`
	Bytes   int64   `json:"bytes"` // of the objects, uncompressed
}

// ImportBuild selects the missing templates that an import builds.
type ImportBuild string

// The values of ImportBuild. The specs in a file are as untrusted as the file.
const (
	BuildNone  ImportBuild = "none"
	BuildKnown ImportBuild = "known" // templates whose spec this host has
	BuildAll   ImportBuild = "all"   // also templates whose spec only the file has, and images
)

// ImportReport counts the imported data of a session.
type ImportReport struct {
	Session Session `json:"session"`
	Fresh   bool    `json:"fresh"` // false: the session existed, and nothing was changed
	Turns   int     `json:"turns"`
	Objects int     `json:"objects"`
	Bytes   int64   `json:"bytes"`
	// Missing counts the files that are in missing templates. They become readable when the
	// templates are built.
	Missing      int               `json:"missing"`
	MissingBytes int64             `json:"missing_bytes"`
	Templates    []UnbuiltTemplate `json:"templates"` // the missing templates
}

// An UnbuiltTemplate is a missing template on which turns of an imported session began.
type UnbuiltTemplate struct {
	Name   string `json:"name"`
	Digest Digest `json:"digest"` // of its spec
	Why    string `json:"why"`
	Hint   string `json:"hint"`
}

// A SealReport describes sessions that were sealed.
type SealReport struct {
	Sealed []SealedSession `json:"sealed"`
	Freed  int64           `json:"freed_bytes"` // by the removal of what was not sealed
}

// A SealedSession is a session that was sealed.
type SealedSession struct {
	Session Session `json:"session"`
	Already bool    `json:"already"` // it was sealed before
	Objects int     `json:"objects"` // that were sealed now
}
