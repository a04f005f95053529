package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/sandboxes"
)

// TestMachinesOfASession checks that the next turn resumes a session's machine, that ForkLive
// clones it, that Resume starts a kept machine, and that a replay repeats a turn without them.
func TestMachinesOfASession(t *testing.T) {
	x := testEngine(turntest.Home(t))
	label := "story-" + strings.ToLower(string(turnstone.NewTurnID()))
	defer func() { _, _ = x.RemoveSession(t.Context(), label) }()
	var used turnstone.Used // by the last turn
	run := func(req plan.Request, script, shows string) *turnstone.TurnReport {
		t.Helper()
		req.Document, req.Session = parse(t, step("", script)), label
		meter := &metered.Meter{}
		turn := ok[*turnstone.TurnReport](t)(x.Run(metered.NewContext(t.Context(), meter), req,
			&observer{}))
		used = meter.Sum()
		if turn.Result != turnstone.ResultPassed || turn.Steps[0].Stdout != shows {
			t.Fatalf("%s: %s (%s)\n%s", turn.Result, turn.Error, turn.Hint, turn.Receipt)
		}
		return turn
	}
	stays := plan.Request{Lifetime: turnstone.LifetimeSession}
	const put = "echo memory >/dev/shm/f; echo disk >f; export V=1"
	const read, all = "cat /dev/shm/f f; echo $V", "memory\ndisk\n1\n"
	first := run(stays, put, "")
	ofBoth := used.CPU
	if second := run(stays, read, all); second.Start != "the paused machine of turn 1" {
		t.Errorf("the second turn begins on %s", second.Start)
	}
	ofBoth += used.CPU
	held := ok[[]sandboxes.Info](t)(sandboxes.NewStore(x.Dir.Root).List(t.Context()))
	if i := slices.IndexFunc(held, func(i sandboxes.Info) bool {
		return strings.Contains(i.Label, label)
	}); i < 0 || used.CPU <= 0 || used.CPU >= ofBoth || held[i].Used.CPU != ofBoth {
		t.Errorf("the second turn used %v, both %v: %+v", used.CPU, ofBoth, held)
	}
	ok[turnstone.Branch](t)(x.ForkLive(t.Context(), label, "other"))
	stays.Branch = "other"
	if third := run(stays, read, all); third.Start != "the paused machine of turn 2" {
		t.Errorf("the turn of the clone begins on %s", third.Start)
	}
	own := run(plan.Request{}, "cat f; ls /dev/shm", "disk\n")
	if own.Start != "turn 2" {
		t.Errorf("the turn with a machine of its own begins on %s", own.Start)
	}
	kept := run(plan.Request{Snapshot: document.SnapshotVM}, put, "")
	info := ok[sandboxes.Info](t)(x.Resume(t.Context(), ResumeRequest{Ref: string(kept.ID),
		TTL: time.Hour}, nil))
	if err := sandboxes.NewStore(x.Dir.Root).Remove(t.Context(), info.ID); err != nil {
		t.Error(err)
	}
	stays.Branch = ""
	if next := run(stays, read, all); !strings.HasPrefix(next.Start, "the kept machine of turn ") {
		t.Errorf("the turn after the kept one begins on %s", next.Start)
	}
	rep := ok[*turnstone.ReplayReport](t)(x.Replay(t.Context(), string(first.ID), ReplayOptions{},
		&observer{}))
	if !rep.Same {
		t.Errorf("the replay differs: %+v", rep)
	}
}
