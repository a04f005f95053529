package sandboxes

import (
	"turnstone.dev/turnstone"
)

// A State is where a sandbox is in its life.
type State string

// The states of a sandbox.
const (
	StateCreating State = "creating" // its machine is being made
	StateReady    State = "ready"    // it is configured, and nothing has been run in it
	StateRunning  State = "running"  // something has been run in it
	StateStopped  State = "stopped"  // on request, or its time was up
	StateFailed   State = "failed"   // it could not be created, or its machine or its holder died
)

// Final reports whether a sandbox in state s has no machine and never will.
func (s State) Final() bool { return s == StateStopped || s == StateFailed }

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
	StateCreating: {Configured: StateReady, CreateFailed: StateFailed, StopRequested: StateStopped, HolderDied: StateFailed},
	StateReady:    {Used: StateRunning, StopRequested: StateStopped, TimeUp: StateStopped, MachineDied: StateFailed, HolderDied: StateFailed},
	StateRunning:  {StopRequested: StateStopped, TimeUp: StateStopped, MachineDied: StateFailed, HolderDied: StateFailed},
	StateStopped:  {},
	StateFailed:   {},
}

// After returns the state that follows s when e happens; an error of kind Internal
// if e has no place there.
func (s State) After(e Event) (State, error) {
	next, ok := transitions[s][e]
	if !ok {
		return s, turnstone.Errorf("sandbox.state", turnstone.KindInternal, "sandbox",
			"%q cannot happen to one that is %s", string(e), s)
	}
	return next, nil
}
