package remote

import (
	"errors"
	"testing"

	"turnstone.dev/turnstone"
)

// TestOutcome: an error after the start was sent never has a kind that says that nothing ran.
func TestOutcome(t *testing.T) {
	for kind, want := range map[turnstone.Kind]turnstone.Kind{
		turnstone.KindNotFound:    turnstone.KindDead, // the node lost its record
		turnstone.KindInvalid:     turnstone.KindDead, // the ticket was used
		turnstone.KindExhausted:   turnstone.KindDead,
		turnstone.KindUnavailable: turnstone.KindDead, // the node does not come back
		turnstone.KindDead:        turnstone.KindDead,
		turnstone.KindIntegrity:   turnstone.KindIntegrity, // a manipulation has its own name
		turnstone.KindCanceled:    turnstone.KindCanceled,
	} {
		err := turnstone.NewError("x", kind, "y", errors.New("z"))
		if got := turnstone.KindOf((&following{open: true}).outcome(err)); got != want {
			t.Errorf("%s after the start: %s", kind, got)
		}
		if got := turnstone.KindOf((&following{}).outcome(err)); got != kind {
			t.Errorf("%s before the start: %s", kind, got)
		}
	}
}
