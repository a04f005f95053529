// Package session stores the tree of turns: sessions, their turns with numbers and parents,
// branches and tags. It refers to turns only by IDs and digests; their state is in the context
// store, which this package does not use.
//
// All data is in a single SQLite database, which several processes may use concurrently.
package session

import (
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// Main is the branch that every session has from the beginning.
const Main = "main"

// A Session is a tree of turns.
type Session struct {
	ID      turnstone.SessionID `json:"id"`
	Name    string              `json:"name,omitempty"` // empty: anonymous
	Created time.Time           `json:"created"`
}

// Label returns the display name of s: its name, or its ID if it has none.
func (s Session) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return string(s.ID)
}

// A Status reports whether a turn has ended.
type Status string

// The statuses of a turn.
const (
	StatusRunning Status = "running"
	StatusDone    Status = "done"
)

// A Turn is a turn of a session.
type Turn struct {
	ID      turnstone.TurnID    `json:"id"`
	Session turnstone.SessionID `json:"session"`
	// in its session, from 1; greater than its parents' numbers
	Number  int                `json:"number"`
	Branch  string             `json:"branch"` // the branch of the turn
	Parents []turnstone.TurnID `json:"parents"`
	Kind    string             `json:"kind"`
	Title   string             `json:"title,omitempty"`
	Status  Status             `json:"status"`
	Result  turnstone.Result   `json:"result,omitempty"` // empty while the turn runs
	// empty while the turn runs, and if its executor died
	Record  turnstone.Digest `json:"record,omitempty"`
	State   turnstone.Digest `json:"state,omitempty"` // empty if the turn left no state
	Started time.Time        `json:"started"`
	Ended   time.Time        `json:"ended,omitzero"` // zero while the turn runs
}

// Interrupted reports whether t's executor died before it stored a record.
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

// A Tag is a permanent name for a turn.
type Tag struct {
	Session turnstone.SessionID `json:"session"`
	Name    string              `json:"name"`
	Turn    turnstone.TurnID    `json:"turn"`
	Created time.Time           `json:"created"`
}

// CheckName reports why name is not allowed for a new session, branch or tag, including those of an
// imported session: the error is of kind Invalid. In addition to turnstone.CheckName, a name must
// not look like an ID or a turn of the current session ("turn-6"); the name of a branch or a tag
// must not look like a turn's number. what is "session", "branch" or "tag".
func CheckName(what, name string) error {
	hint := ""
	err := turnstone.CheckName(what, name)
	switch {
	case err != nil:
		hint = turnstone.HintOf(err)
	case strings.HasPrefix(name, "t_"), strings.HasPrefix(name, "s_"):
		hint = "names with the prefix t_ or s_ are reserved for IDs"
	case turnstone.ReadsAsTurn(name):
		hint = fmt.Sprintf("%s is the name of a turn", name)
	case what != turnstone.NameOfSession && strings.Trim(name, "0123456789") == "":
		hint = "names that contain only digits are reserved for turn numbers"
	default:
		return nil
	}
	return turnstone.Errorf("session.name", turnstone.KindInvalid, fmt.Sprintf("%s %.120q", what, name),
		"is not a name").WithHint(hint)
}
