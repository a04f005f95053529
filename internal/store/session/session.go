// Package session stores the tree of turns: sessions, their turns with numbers and parents,
// branches and tags. It refers to turns only by IDs and digests; their state is in the context
// store, which this package does not use.
//
// All data is in a single SQLite database, which several processes may use concurrently, or in a schema
// of a PostgreSQL database, which several machines may use.
package session

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
)

// Main is the branch that every session has from the beginning.
const Main = "main"

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
	return turnstone.Errorf("session.name", turnstone.KindInvalid,
		fmt.Sprintf("%s %.120q", what, name),
		"is not a valid name").WithHint(hint)
}
