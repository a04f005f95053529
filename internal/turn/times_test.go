package turn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/replay"
)

// times runs a document several times.
func (w *world) times(text string, n int) (*turnstone.TurnReport, error) {
	w.t.Helper()
	cs := ok[*repo.ContextStore](w.t)(w.host.Context(w.t.Context()))
	return replay.Times(w.t.Context(), w.Runner, cs, replay.TimesRequest{Times: n,
		Request: plan.Request{Session: "s", Image: image,
			Document: ok[*document.Document](w.t)(document.Parse("d.md", []byte(text)))}}, nil)
}

// TestTimes checks that each run starts from the same state, that only the first is in the session,
// and that the first difference is named.
func TestTimes(t *testing.T) {
	w := newWorld(t)
	all := w.starts()
	text := "---\ndeterministic: true\n---\n" +
		step("name=a", "echo $((++N)); export N; echo $N > file-of-$N; pwd >&2")
	for turn := 1; turn <= 2; turn++ {
		rep, err := w.times(text, 3)
		if err != nil || rep.Times == nil || !rep.Times.Same || len(rep.Times.Runs) != 3 ||
			rep.Times.Difference != nil || rep.Number != turn {
			t.Fatalf("%v, %+v, %+v", err, rep.Times, rep.Times.Difference)
		}
	}
	if len(*all) != 6 || (*all)[0].machine.Seed != (*all)[2].machine.Seed ||
		(*all)[0].machine.Seed == (*all)[3].machine.Seed {
		t.Errorf("%+v", *all)
	}
	// The guest of this test sees the host's files, so a run can know its number.
	counter := filepath.Join(t.TempDir(), "counter")
	count := "n=$(cat " + counter + "); echo $((n + 1)) > " + counter + "; "
	for name, c := range map[string]struct {
		script string
		run    int
		want   string
	}{
		"output": {"echo same; echo $((n > 1)); echo last", 3,
			`step a, stdout, line 2: "0" in run 1, "1" in run 3`},
		"more output": {"seq 1 $((n + 20000))", 2,
			`step a, stdout, line 20001: "" in run 1, "20001" in run 2`},
		"error output": {"echo $n >&2", 2, `step a, stderr, line 1: "0" in run 1, "1" in run 2`},
		"a long line":  {"printf x%.0s {1..100000}; echo $n", 2, `x0" in run 1, "…x`},
		"no output":    {"test $n = 1 || echo here", 2, `line 1: "here" in run 1, "" in run 2`},
		"exit code":    {"exit $((n + 3))", 2, `step a, exit code: "3" in run 1, "4" in run 2`},
		"status":       {"exit $((n % 2))", 2, `step a, status: "passed" in run 1, "failed" in run 2`},
		"a file":       {"echo $n > made", 2, "/made: differs"},
		"another file": {"echo > made$n", 2, "/made0: only in the first run"},
		"variable":     {"export V=a$n", 2, `environment V: "a0" in run 1, "a1" in run 2`},
		"directory":    {"mkdir d0 d1; cd d$n", 2, `working directory: "`},
	} {
		if err := os.WriteFile(counter, []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		rep, err := w.times(step("name=a", count+c.script), 4)
		if err != nil || rep.Times.Same || rep.Times.Difference == nil ||
			len(rep.Times.Runs) != c.run || rep.Times.Difference.Run != c.run {
			t.Errorf("%s: %v, %+v", name, err, rep.Times)
			continue
		}
		got := rep.Times.Difference.String()
		if !strings.Contains(got, c.want) || len(got) > 700 {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	cs := ok[*repo.ContextStore](t)(w.host.Context(t.Context()))
	if _, err := cs.DB.Resolve(t.Context(), "s@13"); err != nil {
		t.Error(err)
	}
	if _, err := cs.DB.Resolve(t.Context(), "s@14"); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Errorf("the session has more than 13 turns: %v", err)
	}
}

// TestTimesThatStop checks runs that are not compared.
func TestTimesThatStop(t *testing.T) {
	w := newWorld(t)
	for _, n := range []int{-1, 1, 101} {
		if rep, err := w.times(step("name=a", "true"), n); rep != nil ||
			turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%d times: %+v, %v", n, rep, err)
		}
	}
	marker := filepath.Join(t.TempDir(), "marker")
	rep, err := w.times(step("name=a", fmt.Sprintf("test ! -e %s; touch %[1]s", marker))+
		step("name=b skip", "true"), 2)
	if err != nil || rep.Times == nil {
		t.Errorf("%v, %+v", err, rep)
	}
}
