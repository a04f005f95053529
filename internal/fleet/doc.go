// Package fleet decides for a fleet of nodes: which node gets a claim, when a node counts as lost,
// how many sandboxes wait where, who may run a turn, and when a sandbox ends. The controller and the
// simulation in package sim call the same code.
//
// The package is pure: state, an event and the time go in, state and actions come out. It has no
// clock, goroutine, network or database. A time is a duration since an arbitrary moment of the
// machine that decides (of the database, for leases), so that the clocks of nodes never matter.
// Its types are not safe for concurrent use.
//
// Every state machine is a Table, which its test prints: docs/scaling.md.
package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// A Row is a set of transitions.
type Row[S, E ~string] struct {
	From   []S
	Events []E
	To     S
}

// A Table has all transitions of a state machine, and no others.
type Table[S, E ~string] []Row[S, E]

// Next returns the state after an event, and whether the event can happen in the state.
func (t Table[S, E]) Next(from S, e E) (to S, ok bool) {
	for _, r := range t {
		if slices.Contains(r.Events, e) && slices.Contains(r.From, from) {
			return r.To, true
		}
	}
	return from, false
}

// String returns the table in markdown.
func (t Table[S, E]) String() string {
	var b strings.Builder
	b.WriteString("| from | event | to |\n|---|---|---|\n")
	for _, r := range t {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", join(r.From), join(r.Events), r.To)
	}
	return b.String()
}

func join[T ~string](all []T) string {
	var list []string
	for _, x := range all {
		list = append(list, string(x))
	}
	return strings.Join(list, ", ")
}
