package records

import (
	"slices"

	"turnstone.dev/turnstone"
)

// A State is a phase of an object's life.
type State string

// The states. Which a kind has is in its table.
const (
	Creating State = "creating"
	Ready    State = "ready"
	Running  State = "running" // a command runs now; of a turn: its document has arrived
	Stopped  State = "stopped"
	Failed   State = "failed"

	Reserved State = "reserved" // the ticket is valid, and the document has not arrived
	Done     State = "done"
	Expired  State = "expired" // the document did not arrive

	Kept    State = "kept"
	Removed State = "removed"
)

// An Event moves an object from a state to another.
type Event string

// The events.
const (
	Configured     Event = "configured"
	CommandStarted Event = "first command started"
	CommandsEnded  Event = "last command ended"
	StopRequested  Event = "stop requested"
	TimeUp         Event = "time up"
	CreateFailed   Event = "create failed"
	MachineDied    Event = "machine died"
	HolderDied     Event = "holder died"
	Begun          Event = "begun"
	Finished       Event = "finished"
	Cancelled      Event = "cancelled"
	Deleted        Event = "deleted"
	Lost           Event = LostReason
)

// A transition is a row of a kind's table.
type transition struct {
	from   []State
	events []Event
	to     State
}

// tables are the transitions of each kind, and no others. docs/decisions/0018-roles.md has the
// sandboxes' table; a sandbox that its node lost has no holder.
var tables = map[Kind][]transition{
	Sandbox: {
		{[]State{Creating}, []Event{Configured}, Ready},
		{[]State{Ready}, []Event{CommandStarted}, Running},
		{[]State{Running}, []Event{CommandsEnded}, Ready},
		{[]State{Ready, Running}, []Event{StopRequested, TimeUp}, Stopped},
		{[]State{Creating, Ready, Running},
			[]Event{CreateFailed, MachineDied, HolderDied, Lost}, Failed},
	},
	Turn: {
		{[]State{Reserved}, []Event{Begun}, Running},
		{[]State{Running}, []Event{Finished, Cancelled, Lost}, Done},
		{[]State{Reserved}, []Event{Cancelled, TimeUp, Lost}, Expired},
	},
	Session:  {{[]State{Kept}, []Event{Deleted, Lost}, Removed}},
	Snapshot: {{[]State{Kept}, []Event{Deleted, Lost}, Removed}},
}

// First returns the state in which objects of a kind are made.
func First(k Kind) State {
	if t := tables[k]; t != nil {
		return t[0].from[0]
	}
	return ""
}

// Final reports whether no transition leads out of s.
func (s State) Final() bool {
	return slices.Contains([]State{Stopped, Failed, Done, Expired, Removed}, s)
}

// Next returns the state after an event. The error is of kind Invalid if the event cannot happen.
func Next(k Kind, from State, e Event) (State, error) {
	for _, t := range tables[k] {
		if slices.Contains(t.from, from) && slices.Contains(t.events, e) {
			return t.to, nil
		}
	}
	return "", turnstone.Errorf("records.change", turnstone.KindInvalid, string(k),
		"%.40q cannot happen to a %s that is %s", string(e), string(k), string(from)).
		WithHint("read the object's state again")
}

// Reaches reports whether no, one or more transitions lead from a state to another. A node reports
// only the latest state of an object.
func Reaches(k Kind, from, to State) bool {
	seen, list := map[State]bool{from: true}, []State{from}
	for len(list) > 0 {
		s := list[0]
		list = list[1:]
		if s == to {
			return true
		}
		for _, t := range tables[k] {
			if slices.Contains(t.from, s) && !seen[t.to] {
				seen[t.to] = true
				list = append(list, t.to)
			}
		}
	}
	return false
}
