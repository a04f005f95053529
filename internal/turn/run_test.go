package turn

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox/command"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
)

// observer records its calls, for tests.
type observer struct {
	mu     sync.Mutex
	events []string
	output strings.Builder
	onStep func(step *document.Step)
	onText func()
}

func (o *observer) Preparing(what string) {
	if strings.HasPrefix(what, "--get") {
		o.add(what)
	}
}

func (o *observer) StepStarted(s *document.Step) {
	o.add("start " + s.Name)
	if o.onStep != nil {
		o.onStep(s)
	}
}

func (o *observer) StepFinished(s *document.Step, r turnstone.StepReport) {
	o.add(string(r.Status) + " " + s.Name)
}

func (o *observer) StepOutput(_ *document.Step, _ turnstone.Stream, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.output.Write(p)
	if o.onText != nil {
		o.onText()
	}
}

func (o *observer) add(e string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

func step(attrs, script string) string { return "```bash " + attrs + "\n" + script + "\n```\n\n" }

func runDoc(t *testing.T, ctx context.Context, req plan.Request,
	obs *observer) *turnstone.TurnReport {
	t.Helper()
	turn, err := testRunner(turntest.Home(t)).Run(ctx, req, obs)
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	if _, err := document.Parse("receipt.md", []byte(turn.Receipt)); err != nil {
		t.Errorf("the receipt is no document: %v\n%s", err, turn.Receipt)
	}
	return turn
}

// TestTurns runs documents in real sandboxes. want has one line per step: name, status, exit code,
// and the text that output, note or receipt must contain.
//
//testrun:user
func TestTurns(t *testing.T) {
	turntest.Home(t)
	for name, c := range map[string]struct {
		doc    string
		result turnstone.Result
		want   []string
		shows  []string // in the receipt
		hides  []string // not in the receipt
	}{
		"environment and directory carry over": {
			step("name=a", "export X='a b\nc'; mkdir d; cd d; y=1; f() { echo f; }") +
				step("name=b", `pwd; echo "$X"; echo "[$y]"; type f 2>&1 | head -1`),
			turnstone.ResultPassed, []string{"a passed 0", "b passed 0"},
			[]string{"/workspace/d\na b\nc\n[]\n"}, nil,
		},
		"after a failing step the rest is skipped": {
			step("name=a", "echo no >&2; exit 3") + step("name=b", "echo reached"),
			turnstone.ResultFailed, []string{"a failed 3", "b skipped -"}, []string{"a failed"},
			[]string{"stdout\n```text\nreached"},
		},
		"continue-on-error goes on": {
			step("name=a continue-on-error", "exit 3") + step("name=b", "echo reached"),
			turnstone.ResultPassed, []string{"a failed 3", "b passed 0"}, []string{"reached"}, nil,
		},
		"skip": {
			step("name=a skip", "exit 3") + step("name=b", "true"), turnstone.ResultPassed,
			[]string{"a skipped -", "b passed 0"}, []string{"skipped by its author"}, nil,
		},
		"cwd of document and step": {
			"---\ncwd: /srv/x\n---\n" + step("name=a", "pwd") + step("name=b cwd=y", "pwd") +
				step("name=c", "pwd"),
			turnstone.ResultPassed, []string{"a passed 0", "b passed 0", "c passed 0"},
			[]string{"/srv/x\n", "/srv/x/y\n"}, nil,
		},
		"a program in the shell's place leaves no environment": {
			step("name=a", "export X=1; exec true") + step("name=b", `echo "[$X]"`),
			turnstone.ResultPassed, []string{"a passed 0", "b passed 0"},
			[]string{"not carried over", "[]"}, nil,
		},
		"sh": {
			"```sh name=a\nexport Q=1; cd /etc; echo $0 | grep -c sh\n```\n" + step("name=b",
				"echo $Q $PWD"),
			turnstone.ResultPassed, []string{"a passed 0", "b passed 0"}, []string{"1 /etc\n"}, nil,
		},
		"a step's timeout kills its tree": {
			step("name=a timeout=2s continue-on-error",
				"echo begun; (setsid sleep 987 & ); sleep 987") + step("name=b",
				"pgrep -c -f 'sleep 98[7]'; true"),
			turnstone.ResultPassed, []string{"a timeout -", "b passed 0"},
			[]string{"begun", "killed after 2s", "stdout\n```text\n0\n"}, nil,
		},
		"a step's timeout ends the turn": {
			step("name=a timeout=1s", "sleep 99") + step("name=b", "echo reached"),
			turnstone.ResultTimedOut, []string{"a timeout -", "b skipped -"},
			[]string{"a timed out"}, nil,
		},
		"the turn's timeout": {
			"---\ntimeout: 3s\n---\n" + step("name=a continue-on-error", "echo begun; sleep 99") +
				step("name=b", "echo reached"),
			turnstone.ResultTimedOut, []string{"a timeout -", "b skipped -"},
			[]string{"begun", "time was up"}, nil,
		},
		"a killed init's children": {
			step("name=a", "kill -9 -1; echo still here") + step("name=b", "echo alive"),
			turnstone.ResultPassed, []string{"a passed 0", "b passed 0"}, []string{"alive"}, nil,
		},
		"signals to init": {
			step("name=a", "for s in $(seq 1 31); do [ $s = 9 ] || [ $s = 19 ] || kill -$s 1; "+
				"done; sleep 0.2; echo alive"),
			turnstone.ResultPassed, []string{"a passed 0"}, []string{"alive"}, nil,
		},
		"closed outputs": {
			step("name=a", "echo before; exec >&- 2>&-; sleep 0.1; exit 4"), turnstone.ResultFailed,
			[]string{"a failed 4"}, []string{"before"}, nil,
		},
		"background processes hold the pipes": {
			step("name=a", "(sleep 600; echo late) & echo done") + step("name=b",
				"pgrep -x sleep >/dev/null && echo runs"),
			turnstone.ResultPassed, []string{"a passed 0", "b passed 0"}, []string{"done", "runs"},
			[]string{"\nlate"},
		},
		"NUL bytes and invalid UTF-8": {
			step("name=a", `printf 'a\0b'; printf '\377\376' >&2`), turnstone.ResultPassed,
			[]string{"a passed 0"}, []string{"sha256:"}, []string{"a\x00b"},
		},
		"forged markers": {
			step("name=a", "echo '```'; echo '<!-- /turn:result -->'; echo '<!-- turn:result "+
				"step=2 -->'; echo '**passed** forged'") + step("name=b", "exit 1"),
			turnstone.ResultFailed, []string{"a passed 0", "b failed 1"}, nil, nil,
		},
		"out of memory": {
			"---\nmemory: 256MiB\n---\n" + step("name=a",
				`perl -e 'push @x, "x" x (1_000_000 + $_) for 1..320; sleep 60'`), turnstone.ResultFailed,
			[]string{"a failed *"}, []string{"out of memory"}, nil,
		},
		"full disk": {
			"---\ndisk: 64MiB\n---\n" + step("name=a continue-on-error",
				"head -c 100000000 /dev/zero > big") + step("name=b",
				"rm big; echo x > small; cat small"),
			turnstone.ResultPassed, []string{"a failed 1", "b passed 0"},
			[]string{"No space left", "disk is full"}, nil,
		},
		"kernel panic": {
			"---\nisolation: microvm\n---\n" + step("name=a",
				"echo before; sleep 0.2; echo c > /proc/sysrq-trigger") + step("name=b",
				"echo reached"),
			turnstone.ResultError, []string{"a error -", "b skipped -"},
			[]string{"before", "Kernel panic"}, nil,
		},
		"power off": {
			"---\nisolation: microvm\n---\n" + step("name=a",
				"echo o > /proc/sysrq-trigger; sleep 60"), turnstone.ResultError,
			[]string{"a error -"}, []string{"shut"}, nil,
		},
		"no steps": {"# Nothing\n", turnstone.ResultPassed, nil, []string{"result: passed"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			obs := &observer{}
			turn := runDoc(t, t.Context(), plan.Request{Document: parse(t, c.doc)}, obs)
			if turn.Result != c.result {
				t.Errorf("result %s, want %s (%s)", turn.Result, c.result, turn.Error)
			}
			var got []string
			for _, s := range turn.Steps {
				code := "-"
				if s.ExitCode != nil {
					code = fmt.Sprint(*s.ExitCode)
				}
				got = append(got, s.Name+" "+string(s.Status)+" "+code)
			}
			if !slices.EqualFunc(got, c.want, func(g, w string) bool {
				p, ok := strings.CutSuffix(w, "*")
				return g == w || ok && strings.HasPrefix(g, p)
			}) {
				t.Errorf("steps %q, want %q", got, c.want)
			}
			for _, s := range c.shows {
				if !strings.Contains(turn.Receipt, s) {
					t.Errorf("the receipt does not show %q", s)
				}
			}
			for _, s := range c.hides {
				if strings.Contains(turn.Receipt, s) {
					t.Errorf("the receipt shows %q", s)
				}
			}
			if t.Failed() {
				t.Log(turn.Receipt)
			}
			kept, err := os.ReadFile(turntest.Home(t).Path("turns", string(turn.ID), "receipt.md"))
			if err != nil || string(kept) != turn.Receipt {
				t.Errorf("the kept receipt differs from the one returned (%v)", err)
			}
		})
	}
}

// TestKillGrace checks that a step that was killed in time leaves the machine to the next step.
func TestKillGrace(t *testing.T) {
	t.Parallel()
	x := testRunner(turntest.Home(t))
	x.host.Launcher.KillGrace = 8 * time.Second
	doc := step("name=a timeout=1s continue-on-error", "sleep 99") + step("name=b",
		"sleep 10; echo alive")
	turn, err := x.Run(t.Context(), plan.Request{Document: parse(t, doc)}, &observer{})
	if err != nil || turn.Result != turnstone.ResultPassed || turn.Steps[1].Stdout != "alive\n" {
		t.Errorf("%v, %+v", err, turn)
	}
}

// TestDisobedience checks that the time limit ends a step whose shell was moved out of the step's
// control group by root of the sandbox, and that the changes before the step are kept.
func TestDisobedience(t *testing.T) {
	t.Parallel()
	x := testRunner(turntest.Home(t))
	x.host.Launcher.KillGrace = 2 * time.Second
	const escape = "echo kept > /var/kept; mkdir /sys/fs/cgroup/out && echo $$ > " +
		"/sys/fs/cgroup/out/cgroup.procs && while :; do sleep 1; done"
	_, err := command.Run(t.Context(), x.host, command.Request{Argv: []string{"bash", "-c", escape},
		Timeout: 2 * time.Second, Stdout: io.Discard, Stderr: io.Discard}, func(string) {})
	if turnstone.KindOf(err) != turnstone.KindTimeout {
		t.Errorf("exec: %v", err)
	}
	turn, err := x.Run(t.Context(),
		plan.Request{Document: parse(t, step("name=a timeout=6s", escape)+step("name=b", "true"))},
		&observer{})
	if err != nil || turn.Result != turnstone.ResultTimedOut ||
		turn.Steps[0].Status != turnstone.StepTimeout || turn.State == "" {
		t.Fatalf("run: %v, %+v", err, turn)
	}
	in, err := x.host.Repo.OpenFile(t.Context(), string(turn.ID), "/var/kept")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	if b, err := io.ReadAll(in); err != nil || string(b) != "kept\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestForkBomb checks that a step that forks without end is killed at its time limit, and that the
// next step runs.
func TestForkBomb(t *testing.T) {
	doc := step("name=bomb timeout="+testsize.Of("3s", "8s")+" continue-on-error", // it has all CPUs until then
		"bomb() { bomb | bomb & }; bomb; sleep 99") + step("name=next", "echo alive")
	turn := runDoc(t, t.Context(), plan.Request{Document: parse(t, doc), Timeout: 5 * time.Minute},
		&observer{})
	if turn.Result != turnstone.ResultPassed || turn.Steps[0].Status != turnstone.StepTimeout ||
		turn.Steps[1].Stdout != "alive\n" {
		t.Errorf("%s", turn.Receipt)
	}
}

// TestReceiptRunsAgain checks that a receipt is a document, and that running it replaces only the
// results.
func TestReceiptRunsAgain(t *testing.T) {
	doc := parse(t, "# Title\n\n"+step("name=a", "date +%N; echo '```'")+
		"The end, without a newline")
	first := runDoc(t, t.Context(), plan.Request{Document: doc}, &observer{})
	again := runDoc(t, t.Context(), plan.Request{Document: parse(t, first.Receipt)}, &observer{})
	if got := string(parse(t, again.Receipt).Clean()); got != string(doc.Clean()) {
		t.Errorf("the author's text changed:\n%s", got)
	}
	if strings.Count(again.Receipt, "turn:result step") != 1 ||
		again.Steps[0].Stdout == first.Steps[0].Stdout {
		t.Errorf("the results were not replaced:\n%s", again.Receipt)
	}
}

// TestInterrupted cancels a turn while a step runs.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	obs := &observer{onText: cancel}
	turn := runDoc(t, ctx, plan.Request{Document: parse(t, step("name=a", "echo begun; sleep 600")+
		step("name=b", "true"))}, obs)
	if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, "interrupted") ||
		!strings.Contains(turn.Error, "a") ||
		turn.Steps[0].Status != turnstone.StepError || turn.Steps[0].Stdout != "begun\n" ||
		turn.Steps[1].Status != turnstone.StepSkipped {
		t.Errorf("%s\n%s", turn.Error, turn.Receipt)
	}
	if want := []string{"start a", "error a"}; !slices.Equal(obs.events, want) {
		t.Errorf("events %q, want %q", obs.events, want)
	}
}

// TestInterruptedEarly cancels at moments before any step runs.
func TestInterruptedEarly(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
		turn := runDoc(t, ctx, plan.Request{Document: parse(t, step("name=a", "sleep 600"))},
			&observer{})
		if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, "interrupted") {
			t.Errorf("cancelled after %s: %s, %q", after, turn.Result, turn.Error)
		}
	}
}

func TestTransfers(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for name, text := range map[string]string{"in.txt": "in", "tree/a": "a", "tree/b/c": "c"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	doc := parse(t, "---\nfiles:\n- in.txt\n- tree:/data\n---\n"+
		step("name=a", "cat in.txt /data/a /data/b/c deep/er/added; mkdir r; echo made > r/x; "+
			"ln -s /etc/passwd r/l; exit 1"))
	obs := &observer{}
	turn := runDoc(t, t.Context(), plan.Request{Document: doc, Dir: dir,
		Add: []document.Transfer{{Path: filepath.Join(dir, "in.txt"), Dest: "deep/er/added"}},
		Get: []document.Transfer{{Path: "r", Dest: out}}}, obs)
	if turn.Result != turnstone.ResultFailed || turn.Steps[0].Stdout != "inacin" {
		t.Errorf("%s", turn.Receipt)
	}
	if b, err := os.ReadFile(filepath.Join(out, "x")); err != nil || string(b) != "made\n" {
		t.Errorf("fetched %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(out, "l")); err == nil {
		t.Error("a link out of the folder came along")
	}
	if !slices.ContainsFunc(obs.events,
		func(e string) bool { return strings.Contains(e, `left out "out/l"`) }) {
		t.Errorf("nothing was said of the link: %q", obs.events)
	}
}

func TestGetOfNothing(t *testing.T) {
	turn := runDoc(t, t.Context(), plan.Request{Document: parse(t, step("name=a", "true")),
		Get: []document.Transfer{{Path: "none", Dest: t.TempDir()}}}, &observer{})
	if turn.Result != turnstone.ResultError || !strings.Contains(turn.Error, "none") ||
		turn.Steps[0].Status != turnstone.StepPassed {
		t.Errorf("%s: %s", turn.Result, turn.Error)
	}
}

// TestTimeoutWhileAdding checks that the turn's time limit includes the copying of files.
func TestTimeoutWhileAdding(t *testing.T) {
	big := filepath.Join(t.TempDir(), "big")
	// Holes are not sent, and this much is not in a millisecond.
	if err := os.WriteFile(big, bytes.Repeat([]byte("x"), 256<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	turn := runDoc(t, t.Context(), plan.Request{Document: parse(t, step("name=a", "true")),
		Add: []document.Transfer{{Path: big}}, Timeout: time.Millisecond}, &observer{})
	if turn.Result != turnstone.ResultTimedOut ||
		!strings.Contains(turn.Error, "while files were added") ||
		turn.Steps[0].Status != turnstone.StepSkipped {
		t.Errorf("%s: %s", turn.Result, turn.Error)
	}
}

// TestGetAfterFailure checks that the failed step is the result, not the file that the step did not
// make.
func TestGetAfterFailure(t *testing.T) {
	turn := runDoc(t, t.Context(), plan.Request{Document: parse(t, step("name=a", "exit 5")),
		Get: []document.Transfer{{Path: "none", Dest: t.TempDir()}}}, &observer{})
	if turn.Result != turnstone.ResultFailed ||
		!strings.Contains(turn.Error, "--get /workspace/none") {
		t.Errorf("%s: %s", turn.Result, turn.Error)
	}
}

func TestUnknownImage(t *testing.T) {
	_, err := testRunner(turntest.Home(t)).Run(t.Context(), plan.Request{Document: parse(t, ""),
		Image: "pyhton"}, &observer{})
	if turnstone.KindOf(err) != turnstone.KindNotFound ||
		!strings.Contains(turnstone.HintOf(err)+err.Error(), "python") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
}

func TestJSON(t *testing.T) {
	turn := runDoc(t, t.Context(), plan.Request{Document: parse(t, step("name=a", "echo x"))},
		&observer{})
	b, err := json.Marshal(turn)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"id", "result", "substrate", "isolation", "template",
		"duration_ms", "receipt", "steps", "phases"} {
		if m[key] == nil {
			t.Errorf("%s is missing in %s", key, b)
		}
	}
	s, ok := m["steps"].([]any)[0].(map[string]any)
	for _, key := range []string{"name", "line", "status", "exit_code", "duration_ms", "stdout",
		"stderr"} {
		if _, has := s[key]; !ok || !has {
			t.Errorf("steps[0].%s is missing", key)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			doc := step("name=a", fmt.Sprintf("echo %d > f; sleep 0.5; cat f", i))
			turn, err := testRunner(turntest.Home(t)).Run(t.Context(),
				plan.Request{Document: parse(t, doc)}, &observer{})
			if err != nil || turn.Result != turnstone.ResultPassed ||
				turn.Steps[0].Stdout != fmt.Sprintln(i) {
				t.Errorf("turn %d: %v, %+v", i, err, turn)
			}
		})
	}
	wg.Wait()
}
