package cli

import (
	"testing"

	"turnstone.dev/turnstone"
)

// TestCodeOf: status 2 means that the document or the command line is wrong, and nothing else.
func TestCodeOf(t *testing.T) {
	for kind, want := range map[turnstone.Kind]int{turnstone.KindInvalid: ExitUsage,
		turnstone.KindNotFound: ExitUsage, turnstone.KindDenied: ExitAborted,
		turnstone.KindUnavailable: ExitAborted, turnstone.KindDead: ExitAborted} {
		err := turnstone.NewError("turn.run", kind, "", nil)
		if got := CodeOf(err); got != want {
			t.Errorf("%s: %d", kind, got)
		}
	}
}
