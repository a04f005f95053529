package turn_test

import (
	"os"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/replay"
)

// again runs a range again.
func (w *world) again(q replay.RangeRequest) (*turnstone.RangeReport, error) {
	w.t.Helper()
	cs := ok[*repo.ContextStore](w.t)(w.host.Context(w.t.Context()))
	return replay.Range(w.t.Context(), w.Runner, cs, q, nil)
}

// a log of a session: its turns' numbers with their branches.
func (w *world) turns(session string) int {
	w.t.Helper()
	return len(ok[*turnstone.Graph](w.t)(w.host.Repo.Session(w.t.Context(), session)).Turns)
}

// TestRange checks that each turn of a range starts from the new turn before it, also while GC runs,
// and that the first that differs is named.
func TestRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside, set := outside(t)
	set("before\n")
	s := plan.Request{Session: "s"}
	w.passes(s, "echo 1 > n; export V=1", "")
	w.passes(s, "cat "+outside+" > f; echo $((1+$(cat n))) > n", "")
	w.passes(s, "cat n; echo $((1+$(cat n))) > n", "2\n")
	w.passes(s, "cat f n; echo $V", "before\n3\n1\n")
	gc := func(*turnstone.ReplayReport) {
		ok[*turnstone.GCReport](t)(w.host.Repo.GC(t.Context(), turnstone.GCRequest{}))
	}
	before := w.turns("s")
	rep := ok[*turnstone.RangeReport](t)(w.again(replay.RangeRequest{Ref: "s@1..4", Each: gc}))
	if !rep.Same || rep.First != 0 || len(rep.Turns) != 4 {
		t.Errorf("%+v", rep)
	}
	set("after\n")
	rep = ok[*turnstone.RangeReport](t)(w.again(replay.RangeRequest{Ref: "s@1..s@4", Each: gc}))
	if rep.Same || rep.First != 2 || len(rep.Turns) != 4 || !rep.Turns[0].Same ||
		rep.Turns[3].Same || rep.Turns[3].Turn.Steps[0].Stdout != "after\n3\n1\n" {
		t.Errorf("%+v", rep)
	}
	// The recorded parent of turn 3 has the old file.
	rep = ok[*turnstone.RangeReport](t)(w.again(replay.RangeRequest{Ref: "s@3..4"}))
	if !rep.Same || rep.Turns[0].Turn.Parents[0] == rep.Turns[1].Turn.Parents[0] {
		t.Errorf("%+v", rep)
	}
	if n := w.turns("s"); n != before {
		t.Errorf("%d turns, there were %d", n, before)
	}
	if left, err := os.ReadDir(w.host.Dir.Path("held")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	for ref, says := range map[string]string{"s@4..2": "not an ancestor", "s@1..9": "no such turn",
		"none@1..2": "no such session"} {
		if rep, err := w.again(replay.RangeRequest{Ref: ref}); rep != nil || err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v", ref, rep, err)
		}
	}
}

// TestHeldByTheDead checks that GC removes what an ended process has held.
func TestHeldByTheDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ok[string](t)(w.host.Dir.MkdirAll("held"))
	path := w.host.Dir.Path("held", string(turnstone.NewTurnID()))
	if err := os.WriteFile(path, []byte(`{"id":"t_x","record":"sha256:00"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ok[*turnstone.GCReport](t)(w.host.Repo.GC(t.Context(), turnstone.GCRequest{}))
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// TestOnHead checks that turns run on the present head, on a new branch of their session.
func TestOnHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := plan.Request{Session: "s"}
	w.passes(s, "echo one > f", "")
	cs := ok[*repo.ContextStore](t)(w.host.Context(t.Context()))
	ok[turnstone.Branch](t)(w.host.Repo.Fork(t.Context(), "s@1", "side"))
	side := plan.Request{Session: "s", Branch: "side"}
	w.passes(side, "echo same; cat f > g", "same\n")
	w.passes(side, "cat g", "one\n")
	w.passes(s, "echo two > f", "")
	rep := ok[*turnstone.RangeReport](t)(w.again(replay.RangeRequest{Ref: "s@2..3", OnHead: true}))
	if rep.Branch != "replay-1" || rep.Same || rep.First != 3 || len(rep.Turns) != 2 ||
		rep.Turns[1].Turn.Steps[0].Stdout != "two\n" || rep.Turns[1].Turn.Branch != "replay-1" {
		t.Errorf("%+v", rep)
	}
	head := ok[turnstone.Turn](t)(cs.DB.Resolve(t.Context(), "s@replay-1"))
	if below := ok[turnstone.Turn](t)(cs.DB.Resolve(t.Context(), "s@replay-1~2")); below.Number != 4 ||
		head.ID != rep.Turns[1].Turn.ID || head.Statement == "" {
		t.Errorf("%+v on %+v", head, below)
	}
	rep = ok[*turnstone.RangeReport](t)(w.again(replay.RangeRequest{Ref: "s@2", OnHead: true}))
	if rep.Branch != "replay-2" || !rep.Same {
		t.Errorf("%+v", rep)
	}
	if _, err := w.again(replay.RangeRequest{Ref: "s@2", OnHead: true,
		Branch: "side"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}
