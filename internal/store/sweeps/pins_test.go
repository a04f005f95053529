package sweeps

import (
	"slices"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// TestPins: the pins of a machine go when it no longer needs them, those of others stay.
func TestPins(t *testing.T) {
	pgtest.Shared(t)
	w := newWorld(t, t.TempDir, 1)
	defer w.close()
	s, ctx := w.machines[0].sweeps, t.Context()
	trees := []turnstone.TreeRef{{Root: "sha256:a", Hash: "sha256:1"}, {Root: "sha256:b", Hash: "sha256:2"}}
	for _, machine := range []string{"one", "one", "two"} { // again: nothing
		for _, tree := range trees {
			tx, err := w.db.BeginTx(ctx, nil)
			if err == nil {
				err = s.Pin(ctx, tx, machine, tree)
			}
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(one, two bool, pins []turnstone.TreeRef) {
		t.Helper()
		for machine, pinned := range map[string]bool{"one": one, "two": two} {
			if is, err := s.Pinned(ctx, machine, trees[1]); err != nil || is != pinned {
				t.Errorf("machine %s has a pin: %v, %v", machine, is, err)
			}
		}
		if all, err := s.Pins(ctx); err != nil || !slices.Equal(all, pins) {
			t.Errorf("the pins are %v, %v", all, err)
		}
	}
	want(true, true, trees)
	for _, step := range []struct {
		machine  string
		needed   []turnstone.TreeRef
		one, two bool
		pins     []turnstone.TreeRef
	}{
		{"one", trees[:1], false, true, trees},
		{"two", trees[:1], false, false, trees[:1]},
		{"one", nil, false, false, trees[:1]},
		{"two", nil, false, false, nil},
	} {
		if err := s.Unpin(ctx, step.machine, step.needed); err != nil {
			t.Fatal(err)
		}
		want(step.one, step.two, step.pins)
	}
}
