package turn_test

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/homes"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/turn/replay"
)

func (w *world) homes() *homes.Homes { return homes.In(w.host.Repo) }

// inHome returns the names of the files in a home.
func (w *world) inHome(name string) string {
	w.t.Helper()
	cs := ok[*repo.ContextStore](w.t)(w.host.Context(w.t.Context()))
	h, found, err := cs.DB.Home(w.t.Context(), name)
	if err != nil || !found {
		w.t.Fatalf("home %s: %v, %v", name, found, err)
	}
	var all []string
	err = tree.Walk(w.t.Context(), cs.Store, h.Tree, "/", func(p string, e *tree.Entry) error {
		if e.Type != tree.Dir {
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestHome: a home is in the sandboxes of turns of all sessions, and in no state. A failed turn
// keeps it as it keeps its state.
//
//testrun:user
func TestHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := plan.Request{Session: "a", Home: "ana"}
	first := w.passes(a, "ls -A ../root; echo 1 > ../root/f; cp ../root/f ../root/g; chmod 600 ../root/f; "+
		"echo s > s", "")
	if got := w.files(first.ID); got != "/given /workspace/s" {
		t.Errorf("the state has %s", got)
	}
	if got := w.inHome("ana"); got != "/f /g" {
		t.Errorf("the home has %s", got)
	}
	if h := first.Home; h == nil || h.Name != "ana" || h.Ended == nil || h.Began == *h.Ended ||
		!strings.Contains(first.Receipt, "home_began: "+string(h.Began.Hash)) ||
		!strings.Contains(first.Receipt, "home_ended: "+string(h.Ended.Hash)) {
		t.Errorf("%+v\n%s", first.Home, first.Receipt)
	}
	same := w.passes(a, "cat ../root/g; stat -c '%a' ../root/f; ls", "1\n600\ns\n")
	if same.State != first.State || same.Layer.Digest != "" || *same.Home.Ended != same.Home.Began {
		t.Errorf("a turn that changes nothing left %+v, %+v", same.Layer, same.Home)
	}
	b := plan.Request{Session: "b", Home: "ana"}
	failed := w.run(t.Context(), b, step("", "cat ../root/f; rm ../root/g; echo 2 > ../root/f; exit 3"), nil)
	if failed.Result != turnstone.ResultFailed || failed.Steps[0].Stdout != "1\n" {
		t.Fatalf("%+v", failed)
	}
	w.passes(a, "cat ../root/f; ls ../root; rm ../root/*", "2\nf\n")
	if got := w.files(failed.ID); got != "/given" {
		t.Errorf("the state of b has %s", got)
	}
	w.passes(plan.Request{Session: "a"}, "ls -A ../root 2>/dev/null; cat s", "s\n")
	w.passes(plan.Request{Home: "ana"}, "ls -A ../root; echo 3 > ../root/f", "")
	w.passes(plan.Request{Home: "ana"}, "cat ../root/f", "3\n")
	if rep := ok[*turnstone.FsckReport](t)(w.host.Repo.Fsck(t.Context())); !rep.OK() {
		t.Errorf("fsck: %+v", rep.Problems)
	}
}

// TestHomeOfAReplay: a replay has the home that the turn began with, and changes none.
func TestHomeOfAReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := plan.Request{Session: "a", Home: "ana"}
	w.passes(a, "echo 1 > ../root/f", "")
	of := w.passes(a, "cat ../root/f; echo 2 > ../root/f", "1\n")
	w.passes(a, "echo 3 > ../root/f", "")
	cs := ok[*repo.ContextStore](t)(w.host.Context(t.Context()))
	again := func() *turnstone.ReplayReport {
		t.Helper()
		return ok[*turnstone.ReplayReport](t)(replay.Run(t.Context(), w.Runner, cs, string(of.ID),
			replay.Options{}, nil))
	}
	rep := again()
	if !rep.Same || rep.HomeMissing || rep.Turn.Home == nil || *rep.Turn.Home.Ended != *of.Home.Ended &&
		rep.Turn.Home.Ended.Hash != of.Home.Ended.Hash {
		t.Errorf("%+v\n%+v", rep, rep.Turn.Home)
	}
	w.passes(a, "cat ../root/f", "3\n")
	if err := w.homes().Remove(t.Context(), "ana"); err != nil {
		t.Fatal(err)
	}
	gone := ok[*turnstone.GCReport](t)(w.host.Repo.GC(t.Context(), turnstone.GCRequest{}))
	if gone.Store.Objects == 0 {
		t.Errorf("the home's files stay: %+v", gone)
	}
	if rep := again(); !rep.HomeMissing || rep.Same {
		t.Errorf("without the home: %+v", rep)
	}
	w.passes(a, "ls ../root", "")
}

// TestHomeIsKeptOrNot: a turn that cannot keep its home keeps nothing, and the home stays as it was.
func TestHomeIsKeptOrNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := plan.Request{Session: "a", Home: "ana"}
	w.passes(a, "echo 1 > ../root/f; echo 1 > s", "")
	for script, want := range map[string]string{
		"mv ../root ../elsewhere; echo 2 > s":    "/root is no directory at the end",
		"rm -r ../root; echo x > ../root":        "/root is no directory at the end",
		"rm -r ../root; ln -s workspace ../root": "/root is no directory at the end",
	} {
		rep := w.run(t.Context(), a, step("", script), nil)
		if rep.Result != turnstone.ResultError || !strings.Contains(rep.Error, want) ||
			rep.State != "" || rep.Home == nil || rep.Home.Ended != nil {
			t.Errorf("%s: %+v", script, rep)
		}
		if got := w.inHome("ana"); got != "/f" {
			t.Errorf("%s: the home has %s", script, got)
		}
		w.passes(a, "cat ../root/f s", "1\n1\n")
	}
	// Another turn's change, which the lock of the home should have prevented.
	cs := ok[*repo.ContextStore](t)(w.host.Context(t.Context()))
	obs := &meddler{do: func() {
		if _, err := cs.DB.RemoveHome(t.Context(), "ana"); err != nil {
			t.Error(err)
		}
	}}
	rep := w.run(t.Context(), a, step("", "echo 2 > ../root/f; echo 2 > s"), obs)
	if rep.Result != turnstone.ResultError || !strings.Contains(rep.Error, "removed meanwhile") {
		t.Errorf("%+v", rep)
	}
}

// TestHomeHasOneUser: a second turn waits for the first.
func TestHomeHasOneUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held := ok[*homes.Home](t)(w.homes().Open(t.Context(),
		homes.Request{Name: "ana", Turn: "t_1", Timeout: 1e9}, func(string) {}))
	obs := &meddler{on: "waiting for home ana, which turn t_1 uses", do: held.Close}
	rep := w.run(t.Context(), plan.Request{Home: "ana"}, step("", "echo 1 > ../root/f"), obs)
	if rep.Result != turnstone.ResultPassed || !obs.done {
		t.Errorf("%+v", rep)
	}
}

// A meddler does something once, before the first step or when it is told on.
type meddler struct {
	on   string
	do   func()
	done bool
}

func (m *meddler) once(now bool) {
	if now && !m.done {
		m.done = true
		m.do()
	}
}

func (m *meddler) Preparing(what string)                             { m.once(m.on == what) }
func (m *meddler) StepStarted(*document.Step)                        { m.once(m.on == "") }
func (*meddler) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (*meddler) StepFinished(*document.Step, turnstone.StepReport)   {}
