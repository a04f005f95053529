package compare

import (
	"bytes"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/trace"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// turn commits a turn with one step, whose commands end with these codes.
func turn(p *repotest.Past, s turnstone.Session, branch, stdout, file string, exits map[string]int,
	order ...string) {
	p.Commit(s, branch, func(b *store.Batch, rec *turnstone.TurnRecord) turnstone.TurnState {
		var lines bytes.Buffer
		w := ok[*trace.Writer](p.T)(trace.Begin(&lines, turnstone.TraceHead{ID: rec.ID,
			Session: rec.Session}))
		var ran []turnstone.CommandReport
		for i, text := range order {
			code := exits[text]
			ran = append(ran, turnstone.CommandReport{ID: i, Text: text, ExitCode: &code,
				Place: &turnstone.Place{Line: i + 3}})
		}
		if err := w.Step(turnstone.TraceStep{Index: 1, Name: "a", Millis: 7}, ran); err != nil {
			p.T.Fatal(err)
		}
		if err := w.End(); err != nil {
			p.T.Fatal(err)
		}
		c, out := p.Content(b, lines.String()), p.Content(b, stdout)
		rec.Trace, rec.Millis = &c, 9
		rec.Steps = []turnstone.RecordStep{{Name: "a", Status: turnstone.StepPassed, Stdout: &out}}
		return turnstone.TurnState{Image: "base", Cwd: "/",
			Tree: treetest.Make(p.T, b, treetest.Texts(map[string]string{file: stdout})...)}
	})
}

// TestResults: what differs is named: the line of an output, and each command.
func TestResults(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	turn(p, s, "main", "one\ntwo\n", "/f", nil, "x", "y", "z")
	turn(p, s, "main", "one\nthree\n", "/f", map[string]int{"y": 2}, "x", "y", "new")
	d := ok[*turnstone.ResultsDiff](t)(Results(t.Context(), p.Repo, "s@1", "s@2"))
	a := d.Steps[0]
	if d.Same || a.Stdout == nil || a.Stdout.Line != 2 || a.Stdout.Old != "two" ||
		a.Stdout.New != "three" || len(a.Commands) != 3 || *a.OldMillis != 7 {
		t.Fatalf("%+v, %+v", d, a)
	}
	for i, want := range []turnstone.CommandChange{{Status: "M", Text: "y", Line: 4},
		{Status: "D", Text: "z", Line: 5}, {Status: "A", Text: "new", Line: 5}} {
		got := a.Commands[i]
		if got.Status != want.Status || got.Text != want.Text || got.Line != want.Line {
			t.Errorf("%+v, not %+v", got, want)
		}
	}
	if *a.Commands[0].NewExit != 2 || *a.Commands[0].OldExit != 0 {
		t.Errorf("%+v", a.Commands[0])
	}
	if d := ok[*turnstone.ResultsDiff](t)(Results(t.Context(), p.Repo, "s@1", "1")); !d.Same {
		t.Errorf("%+v", d)
	}
}

// TestOutputs: outputs that differ in their ends, or where one is empty.
func TestOutputs(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	for _, text := range []string{"a\nb\n", "a\n", "a", ""} {
		turn(p, s, "main", text, "/f", nil)
	}
	for _, c := range []struct {
		from, to string
		line     int
	}{{"s@1", "2", 2}, {"s@2", "1", 2}, {"s@2", "3", 1}, {"s@3", "4", 1}} {
		d := ok[*turnstone.ResultsDiff](t)(Results(t.Context(), p.Repo, c.from, c.to))
		if o := d.Steps[0].Stdout; o == nil || o.Line < 1 || o.Line > c.line {
			t.Errorf("%s, %s: %+v", c.from, c.to, o)
		}
	}
}

// TestTurns: alternatives side by side.
func TestTurns(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	turn(p, s, "main", "root\n", "/f", nil)
	ok[turnstone.Branch](t)(p.Repo.Fork(t.Context(), "s@1", "x"))
	turn(p, s, "main", "left\n\n", "/f", nil)
	turn(p, s, "x", "right", "/g", nil)
	rep := ok[*turnstone.CompareReport](t)(Turns(t.Context(), p.Repo, []string{"s@2", "x"}))
	if len(rep.Turns) != 2 || rep.Turns[0].Steps[0].Output != "left" ||
		rep.Turns[1].Steps[0].Output != "right" || len(rep.Files) != 2 ||
		rep.Files[0].Path != "/f" || rep.Files[0].Changes[0] != "M" ||
		rep.Files[0].Changes[1] != "" && rep.Files[0].Changes[1] != "D" {
		t.Errorf("%+v", rep)
	}
}
