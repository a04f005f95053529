package fleet

import "time"

// A SandboxState is a phase of a sandbox, as the controller's records have it.
type SandboxState string

// The states of sandboxes.
const (
	SandboxAsked  SandboxState = "asked" // recorded; its node may have it
	SandboxThere  SandboxState = "there"
	SandboxEnding SandboxState = "ending" // its node is to remove it
	SandboxEnded  SandboxState = "ended"
)

// A SandboxEvent moves a sandbox to another state.
type SandboxEvent string

// The events of sandboxes.
const (
	SandboxMade      SandboxEvent = "its node has made it"
	SandboxRefused   SandboxEvent = "its node has refused it"
	SandboxUnwanted  SandboxEvent = "deleted, or its owner is"
	SandboxVanished  SandboxEvent = "its node does not have it"
	SandboxLeaseEnds SandboxEvent = "lease and bound end"
	SandboxSeen      SandboxEvent = "its node has it"
)

// SandboxTable are the transitions of sandboxes. One that its node has after its end is removed
// there: it never comes back.
var SandboxTable = Table[SandboxState, SandboxEvent]{
	{[]SandboxState{SandboxAsked, SandboxThere}, []SandboxEvent{SandboxMade, SandboxSeen}, SandboxThere},
	{[]SandboxState{SandboxAsked}, []SandboxEvent{SandboxRefused}, SandboxEnded},
	{[]SandboxState{SandboxAsked, SandboxThere}, []SandboxEvent{SandboxUnwanted}, SandboxEnding},
	{[]SandboxState{SandboxEnding}, []SandboxEvent{SandboxMade, SandboxSeen, SandboxUnwanted}, SandboxEnding},
	{[]SandboxState{SandboxAsked, SandboxThere, SandboxEnding},
		[]SandboxEvent{SandboxVanished, SandboxLeaseEnds}, SandboxEnded},
	{[]SandboxState{SandboxEnded}, []SandboxEvent{SandboxMade, SandboxSeen}, SandboxEnding},
}

// Removes reports whether a node that has a sandbox in this state is told to remove it.
func (s SandboxState) Removes() bool { return s == SandboxEnding || s == SandboxEnded }

// Bound is how long a sandbox may outlive its lease, counted from the record of its creation: the
// call to its node may take call, and the node's monotonic clock may be slower by a twentieth. The
// node looks every look whether a lease has ended.
func Bound(life, call, look time.Duration) time.Duration { return call + look + life/20 }
