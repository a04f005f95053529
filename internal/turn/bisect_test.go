package turn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox/command"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/internal/turn/bisect"
)

func (w *world) bisect(q bisect.Request) (*turnstone.BisectReport, error) {
	w.t.Helper()
	return bisect.Run(w.t.Context(), w.host, w.Runner, q, nil)
}

// verdicts lists the tests.
func verdicts(rep *turnstone.BisectReport) string {
	var all []string
	for _, t := range rep.Tests {
		all = append(all, fmt.Sprint(t.Number, " ", t.Verdict))
	}
	return strings.Join(all, ", ")
}

// TestBisectByCommand checks that the first bad turn is found in few sandboxes, with its changes,
// also if turns cannot be tested.
func TestBisectByCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := plan.Request{Session: "s"}
	for n := 1; n <= 9; n++ {
		w.passes(s, fmt.Sprintf("echo %d > n; export N=%d", n, n), "")
	}
	root := w.driver.Root()
	search := func(ref, script string) (*turnstone.BisectReport, error) {
		return w.bisect(bisect.Request{Ref: ref, Command: command.Request{Image: image, HostNetwork: true,
			Argv: []string{"bash", "-c", "cd " + filepath.Join(root, "workspace") + "; n=$(cat n); " +
				script}}})
	}
	find := func(ref, script string) *turnstone.BisectReport {
		t.Helper()
		return ok[*turnstone.BisectReport](t)(search(ref, script))
	}
	rep := find("s@1..9", `echo "n is $n, N is $N"; test $n -lt 6`)
	if !rep.Found || rep.Turn.Number != 6 || len(rep.Turn.Files) != 1 ||
		!strings.HasSuffix(rep.Turn.Files[0].Path, "/workspace/n") ||
		rep.Tests[1].Output != "n is 9, N is 9\n" {
		t.Errorf("%+v: %s", rep.Turn, verdicts(rep))
	}
	if got := verdicts(rep); got != "1 good, 9 bad, 5 good, 7 bad, 6 bad" {
		t.Error(got)
	}
	rep = find("s@1..s@9", "case $n in 5|6) exit 125;; esac; test $n -lt 8")
	if !rep.Found || rep.Turn.Number != 8 || rep.Tests[2].Verdict != "skip" {
		t.Errorf("%+v: %s", rep.Turn, verdicts(rep))
	}
	rep = find("s@1..9", "case $n in 5|6) exit 125;; esac; test $n -lt 6")
	if rep.Found || fmt.Sprint(rep.Candidates) != "[5 6 7]" {
		t.Errorf("%+v: %s", rep.Candidates, verdicts(rep))
	}
	if rep = find("s@1..9", "true"); rep.Found || rep.Note == "" {
		t.Errorf("%+v", rep)
	}
	if rep = find("s@1..9", "test $n -lt 3 || nonsense"); !rep.Found || rep.Turn.Number != 3 {
		t.Errorf("%+v: %s", rep.Turn, verdicts(rep))
	}
	for script, says := range map[string]string{"false": "fails there already",
		"exit 125": "cannot test", "test $n -lt 9 || exit 130": "ended with status 130"} {
		if rep, err := search("s@1..9", script); rep != nil || err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", script, err)
		}
	}
	if _, err := search("s@1", "true"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

// TestBisectReplays checks that the first turn whose replay differs is found, in order.
func TestBisectReplays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside, set := outside(t)
	set("before\n")
	s := plan.Request{Session: "s"}
	w.passes(s, "echo 1 > n", "")
	w.passes(s, "cp "+outside+" f", "")
	w.passes(s, "cat n", "1\n")
	if rep := ok[*turnstone.BisectReport](t)(w.bisect(bisect.Request{Ref: "s@1..3"})); rep.Found ||
		verdicts(rep) != "1 same, 2 same, 3 same" {
		t.Errorf("%+v", rep)
	}
	set("after\n")
	rep := ok[*turnstone.BisectReport](t)(w.bisect(bisect.Request{Ref: "s@1..3"}))
	if !rep.Found || rep.Turn.Number != 2 || verdicts(rep) != "1 same, 2 differs" ||
		rep.Replay == nil || len(rep.Replay.Changes) != 1 {
		t.Errorf("%+v: %s", rep, verdicts(rep))
	}
}

// TestBisectWithin checks that the first command that differs is found: by its output, by a file
// alone, in a later step, and between commands that cannot be separated.
func TestBisectWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// each sandbox has another number in a file that belongs to no state
	random, runs := filepath.Join(t.TempDir(), "random"), 0
	w.driver.Started = func(*sandboxtest.Guest) {
		runs++
		if err := os.WriteFile(random, []byte(fmt.Sprintln(runs)), 0o600); err != nil {
			t.Error(err)
		}
	}
	calm := strings.Repeat("echo calm >> log\n", 20)
	for name, c := range map[string]struct {
		doc   string
		text  string
		line  int
		shows bool // an output differs
	}{
		"an output": {"# D\n\n```bash\n" + calm + "cat " + random + "\n" + calm + "```\n",
			"cat " + random, 24, true},
		"a file alone": {"```bash\n" + calm + "x=1; cp " + random + " f; " + calm +
			"cat f\n```\n", "cp " + random + " f;", 22, false},
		"a later step": {"```bash\n" + calm + "```\n\n```bash\n" + calm + "if true; then\n  cat " +
			random + "\nfi\n```\n", "if true; then\n  cat " + random + "\nfi", 45, true},
		"the environment": {"```bash\necho a\nexport R=$(cat " + random + ")\necho b\n```\n",
			"export R=$(cat " + random + ")", 3, false},
		"a here-document": {"```bash\n" + calm + "cat > f <<E; cat " + random +
			"\nbody\nE\necho after\n```\n",
			"cat > f <<E; cat " + random + "\nbody\nE", 22, true},
		"in the background": {"```bash\n" + calm + "sleep 0.1 &\nwait; cat " + random +
			"\n```\n", "cat " + random, 23, true},
	} {
		rep := w.run(t.Context(), plan.Request{Session: "s"}, c.doc, nil)
		if rep.Result != turnstone.ResultPassed {
			t.Fatalf("%s: %s", name, rep.Receipt)
		}
		found, err := w.bisect(bisect.Request{Ref: string(rep.ID)})
		if err != nil || !found.Found || found.Command == nil {
			t.Errorf("%s: %+v, %v (%s)", name, found, err, turnstone.HintOf(err))
			continue
		}
		got := found.Command
		if got.Text != c.text || got.Line != c.line || (got.Old != got.New) != c.shows {
			t.Errorf("%s: %+v", name, got)
		}
		if most := 3 + 2*6; got.Runs > most {
			t.Errorf("%s: %d runs of %d commands", name, got.Runs, got.Of)
		}
	}
	calmTurn := w.passes(plan.Request{Session: "s"}, "echo calm", "calm\n")
	if rep := ok[*turnstone.BisectReport](t)(w.bisect(bisect.Request{
		Ref: string(calmTurn.ID)})); rep.Found || rep.Note != "the replay does not differ" {
		t.Errorf("%+v", rep)
	}
	if left, err := os.ReadDir(w.host.Dir.Path("held")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
