package sandboxes

import (
	"fmt"

	"turnstone.dev/turnstone"
)

// A State is where a sandbox is in its life.
type State string

// The states of a sandbox.
const (
	Creating State = "creating" // its machine is being made
	Ready    State = "ready"    // it is configured, and nothing has been run in it
	Running  State = "running"  // something has been run in it
	Stopped  State = "stopped"  // on request, or its time was up
	Failed   State = "failed"   // it could not be created, or its machine or its holder died
)

// Final reports whether a sandbox in state s has no machine and never will.
func (s State) Final() bool { return s == Stopped || s == Failed }

// An Event is what moves a sandbox from one state to another.
type Event string

// The events in a sandbox's life.
const (
	Configured    Event = "configured"     // its machine answers and is its own
	Used          Event = "used"           // the first process or step was started in it
	StopRequested Event = "stop requested" // somebody asked for its end
	TimeUp        Event = "time up"        // it has lived as long as it may
	CreateFailed  Event = "create failed"  // no machine came of it
	MachineDied   Event = "machine died"   // its machine ended unasked
	HolderDied    Event = "holder died"    // the process that held it ended without a word
)

// transitions are all that there are.
var transitions = map[State]map[Event]State{
	Creating: {Configured: Ready, CreateFailed: Failed, StopRequested: Stopped, HolderDied: Failed},
	Ready:    {Used: Running, StopRequested: Stopped, TimeUp: Stopped, MachineDied: Failed, HolderDied: Failed},
	Running:  {StopRequested: Stopped, TimeUp: Stopped, MachineDied: Failed, HolderDied: Failed},
	Stopped:  {},
	Failed:   {},
}

// After returns the state that follows s when e happens; an error of kind Internal
// if e has no place there.
func (s State) After(e Event) (State, error) {
	next, ok := transitions[s][e]
	if !ok {
		return s, &turnstone.Error{Op: "sandbox.state", Kind: turnstone.Internal, Subject: "sandbox",
			Err: fmt.Errorf("%q cannot happen to one that is %s", string(e), s)}
	}
	return next, nil
}
