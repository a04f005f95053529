package sandboxes

import (
	"turnstone.dev/turnstone"
)

// A State is a phase of a sandbox's life.
type State string

// The states of a sandbox.
const (
	StateCreating State = "creating" // the machine is being created
	StateReady    State = "ready"    // the machine is configured, and no command runs in it
	StateRunning  State = "running"  // a command runs in the machine now
	StateStopped  State = "stopped"  // on request, or the time was up
	StateFailed   State = "failed"   // the creation failed, or the machine or the holder died
)

// stored returns the state in state.json: commands begin and end without a write, and only the
// holder knows about them.
func (s State) stored() State {
	if s == StateRunning {
		return StateReady
	}
	return s
}

// Final reports whether s is a final state, without a machine.
func (s State) Final() bool { return s == StateStopped || s == StateFailed }

// An event moves a sandbox from one state to another.
type event string

// The events in a sandbox's life.
const (
	eventConfigured    event = "configured"     // the machine answers and is configured
	eventStarted       event = "started"        // the first command of those that run was started
	eventIdle          event = "idle"           // the last command that ran has ended
	eventStopRequested event = "stop requested" // a client requested the end
	eventTimeUp        event = "time up"        // the sandbox's lifetime is over
	eventCreateFailed  event = "create failed"  // the machine could not be started
	eventMachineDied   event = "machine died"   // the machine ended by itself
	eventHolderDied    event = "holder died"    // the holder process ended without a report
)

// An End is why a sandbox is stopped or failed. It is empty in other states, and for a sandbox that
// an older version has ended.
type End string

// The ends.
const (
	EndStopRequested = End(eventStopRequested)
	EndTimeUp        = End(eventTimeUp)
	EndCreateFailed  = End(eventCreateFailed)
	EndMachineDied   = End(eventMachineDied)
	EndHolderDied    = End(eventHolderDied)
)

// transitions are all transitions.
var transitions = map[State]map[event]State{
	StateCreating: {eventConfigured: StateReady, eventCreateFailed: StateFailed,
		eventStopRequested: StateStopped, eventHolderDied: StateFailed},
	StateReady: {eventStarted: StateRunning, eventStopRequested: StateStopped,
		eventTimeUp:      StateStopped,
		eventMachineDied: StateFailed, eventHolderDied: StateFailed},
	StateRunning: {eventIdle: StateReady, eventStopRequested: StateStopped,
		eventTimeUp: StateStopped, eventMachineDied: StateFailed,
		eventHolderDied: StateFailed},
	StateStopped: {},
	StateFailed:  {},
}

// after returns the state that follows s after e; the error is of kind KindInternal if e is not
// possible in s.
func (s State) after(e event) (State, error) {
	next, ok := transitions[s][e]
	if !ok {
		return s, turnstone.Errorf("sandbox.state", turnstone.KindInternal, "sandbox",
			"%q is not possible for a sandbox that is %s", string(e), s)
	}
	return next, nil
}
