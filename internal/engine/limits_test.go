package engine

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

// TestLowSpaceStartsNothing checks that nothing starts while the disk is nearly full, and that
// rejected starts leave nothing.
func TestLowSpaceStartsNothing(t *testing.T) {
	x := testEngine(&statedir.Dir{Root: t.TempDir()})
	x.Space.Statfs = func(string) (uint64, uint64, error) { return 100 << 30, 1<<30 - 1, nil }
	turn, err := x.Run(t.Context(), plan.Request{Document: parse(t, step("", "true"))}, &observer{})
	if turn != nil || turnstone.KindOf(err) != turnstone.KindExhausted ||
		!strings.Contains(err.Error(), "must stay free") {
		t.Errorf("%v, %v", turn, err)
	}
	if _, err := os.Stat(x.Dir.Path("turns")); !os.IsNotExist(err) {
		t.Error("there is a turn")
	}
	if _, err := x.Exec(t.Context(), CommandRequest{Argv: []string{"true"}},
		func(string) {}); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("exec: %v", err)
	}
}

// TestLowSpaceEndsTheTurn checks that a running turn ends when the disk is nearly full, with a
// receipt that says so and with the state at that time.
//
//testrun:user
func TestLowSpaceEndsTheTurn(t *testing.T) {
	x := testEngine(turntest.Home(t))
	var full atomic.Bool
	x.Space.Every = 10 * time.Millisecond
	x.Space.Statfs = func(dir string) (uint64, uint64, error) {
		if full.Load() {
			return 100 << 30, 600 << 20, nil
		}
		return diskspace.Statfs(dir)
	}
	obs := &observer{onStep: func(s *document.Step) {
		if s.Name == "fill" {
			full.Store(true)
		}
	}}
	doc := parse(t, step("name=first", "echo kept > kept")+step("name=fill", "sleep 600")+
		step("name=after", "true"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	turn, err := x.Run(ctx, plan.Request{Document: doc}, obs)
	if err != nil {
		t.Fatal(err)
	}
	if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, "must stay free") ||
		turn.Hint == "" {
		t.Errorf("result %s: %s (%s)", turn.Result, turn.Error, turn.Hint)
	}
	if turn.Steps[0].Status != turnstone.StepPassed ||
		turn.Steps[1].Status != turnstone.StepError ||
		!strings.Contains(turn.Steps[1].Note, "stay free") ||
		turn.Steps[2].Status != turnstone.StepSkipped {
		t.Errorf("steps: %+v", turn.Steps)
	}
	if !strings.Contains(turn.Receipt, "must stay free") || turn.FSHash == "" ||
		turn.Layer.Added == 0 {
		t.Errorf("fs %q, layer %+v:\n%s", turn.FSHash, turn.Layer, turn.Receipt)
	}
}
