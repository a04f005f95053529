package sandboxes_test

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
)

// TestNoHolder: a store without a holder creates no sandbox, and starts no program.
func TestNoHolder(t *testing.T) {
	s := sandboxes.NewStore(t.TempDir())
	_, err := s.Create(t.Context(), spec("fine"), nil)
	if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	if all, err := s.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}
