package turn

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turntest"
)

// What readers take of a guest is bounded by the host, whatever disk was asked for.
func TestLimitsReachTheReaders(t *testing.T) {
	x := New(&statedir.Dir{Root: t.TempDir()})
	if err := os.WriteFile(x.home.Path(config.File), []byte("[limits]\nentries = 1000\nfile_size = \"1GiB\""), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &plan.Authority{Request: plan.Request{Document: parse(t, "")}, Host: ok[plan.Host](t)(x.facts())}
	if b := x.bounds(ok[*plan.Plan](t)(plan.Make(a, "", "/workspace"))); b.Limits.Entries != 1000 || b.Limits.FileSize != 1<<30 {
		t.Errorf("%+v", b)
	}
}

// Nothing starts while the disk is nearly full, and nothing is left of what did not.
func TestLowSpaceStartsNothing(t *testing.T) {
	x := New(&statedir.Dir{Root: t.TempDir()})
	x.space.Statfs = func(string) (uint64, uint64, error) { return 100 << 30, 1<<30 - 1, nil }
	turn, err := x.Run(t.Context(), plan.Request{Document: parse(t, step("", "true"))}, &observer{})
	if turn != nil || turnstone.KindOf(err) != turnstone.KindExhausted || !strings.Contains(err.Error(), "must stay free") {
		t.Errorf("%v, %v", turn, err)
	}
	if _, err := os.Stat(x.home.Path("turns")); !os.IsNotExist(err) {
		t.Error("there is a turn")
	}
	if _, err := x.Exec(t.Context(), CommandRequest{Argv: []string{"true"}}, func(string) {}); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("exec: %v", err)
	}
}

// A turn that runs while the disk gets full ends with a receipt that says so, and with the
// state that it had come to.
func TestLowSpaceEndsTheTurn(t *testing.T) {
	x := New(turntest.Home(t))
	var full atomic.Bool
	x.space.Every = 10 * time.Millisecond
	x.space.Statfs = func(dir string) (uint64, uint64, error) {
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
	doc := parse(t, step("name=first", "echo kept > kept")+step("name=fill", "sleep 600")+step("name=after", "true"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	turn, err := x.Run(ctx, plan.Request{Document: doc}, obs)
	if err != nil {
		t.Fatal(err)
	}
	if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, "must stay free") || turn.Hint == "" {
		t.Errorf("result %s: %s (%s)", turn.Result, turn.Error, turn.Hint)
	}
	if turn.Steps[0].Status != turnstone.StepPassed || turn.Steps[1].Status != turnstone.StepError || !strings.Contains(turn.Steps[1].Note, "stay free") || turn.Steps[2].Status != turnstone.StepSkipped {
		t.Errorf("steps: %+v", turn.Steps)
	}
	if !strings.Contains(turn.Receipt, "must stay free") || turn.FSHash == "" || turn.Layer.Added == 0 {
		t.Errorf("fs %q, layer %+v:\n%s", turn.FSHash, turn.Layer, turn.Receipt)
	}
}
