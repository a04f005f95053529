// Package session keeps the tree of turns: sessions, their turns with numbers and
// parents, branches and tags. It knows turns by their IDs and digests only; what
// they left lies in the context store, which this package does not know.
//
// All of it is in one SQLite database, which several processes may use at once.
package session

import (
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// Main is the branch that every session has from its beginning.
const Main = "main"

// A Session is a tree of turns.
type Session struct {
	ID      turnstone.SessionID `json:"id"`
	Name    string              `json:"name,omitempty"` // empty: anonymous
	Created time.Time           `json:"created"`
}

// Label is what people call s: its name, or its ID when it has none.
func (s Session) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return string(s.ID)
}

// A Status says whether a turn has ended.
type Status string

// The statuses of a turn.
const (
	StatusRunning Status = "running"
	StatusDone    Status = "done"
)

// A Turn is one turn of a session.
type Turn struct {
	ID      turnstone.TurnID    `json:"id"`
	Session turnstone.SessionID `json:"session"`
	Number  int                 `json:"number"` // in its session, from 1; a turn's is above its parents'
	Branch  string              `json:"branch"` // the one it was made on
	Parents []turnstone.TurnID  `json:"parents"`
	Kind    string              `json:"kind"`
	Title   string              `json:"title,omitempty"`
	Status  Status              `json:"status"`
	Result  turnstone.Result    `json:"result,omitempty"` // empty while it runs
	Record  turnstone.Digest    `json:"record,omitempty"` // empty while it runs, and when its executor died
	State   turnstone.Digest    `json:"state,omitempty"`  // empty when it left none
	Started time.Time           `json:"started"`
	Ended   time.Time           `json:"ended,omitzero"` // zero while it runs
}

// Interrupted reports whether t's executor died before it could keep a record.
func (t Turn) Interrupted() bool { return t.Status == StatusDone && t.Record == "" }

// Parent returns t's first parent, or "".
func (t Turn) Parent() turnstone.TurnID {
	if len(t.Parents) == 0 {
		return ""
	}
	return t.Parents[0]
}

// A Branch is a name for the newest turn of a line of turns.
type Branch struct {
	Session turnstone.SessionID `json:"session"`
	Name    string              `json:"name"`
	Head    turnstone.TurnID    `json:"head,omitempty"` // empty: no turn yet
	Created time.Time           `json:"created"`
}

// A Tag is a name for one turn that stays with it.
type Tag struct {
	Session turnstone.SessionID `json:"session"`
	Name    string              `json:"name"`
	Turn    turnstone.TurnID    `json:"turn"`
	Created time.Time           `json:"created"`
}

// CheckName reports why a new session, branch or tag, or one of an imported session,
// cannot be called name: the error is of kind Invalid. Beyond turnstone.CheckName a
// name does not look like an ID or a turn of the session at hand ("turn-6"); that of
// a branch or a tag does not look like a turn's number either. what is "session",
// "branch" or "tag".
func CheckName(what, name string) error {
	hint := ""
	err := turnstone.CheckName(what, name)
	switch {
	case err != nil:
		hint = turnstone.HintOf(err)
	case strings.HasPrefix(name, "t_"), strings.HasPrefix(name, "s_"):
		hint = "names that begin with t_ or s_ would be taken for IDs"
	case turnstone.ReadsAsTurn(name):
		hint = fmt.Sprintf("%s would be taken for a turn", name)
	case what != turnstone.NameOfSession && strings.Trim(name, "0123456789") == "":
		hint = "a name of digits only would be taken for a turn's number"
	default:
		return nil
	}
	return turnstone.Errorf("session.name", turnstone.KindInvalid, fmt.Sprintf("%s %.120q", what, name),
		"is not a name").WithHint(hint)
}
