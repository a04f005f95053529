package turn_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/sandboxes"
)

// The tests of this file run whole turns, from the request to the receipt, without a machine. Real
// are the plan, the session, the context store on disk, templates, images of layers, the protocol,
// the agent, its shells, the export of changes, the receipt and the record. Replaced is what
// sandboxtest.Driver names: kernel, overlay, network and isolation. TestTurns and the scripts run
// turns in real sandboxes.

// A world is a state directory with one template, and a runner on it.
type world struct {
	*turn.Runner
	t      *testing.T
	host   *host.Host
	driver *sandboxtest.Driver

	failing atomic.Int64        // the number of writes to the store that fail
	adds    []document.Transfer // files that each turn adds
}

const image = "paths" // the name of the template

// hostIn returns the host of a state directory whose sandboxes are agents in this process.
func hostIn(dir *statedir.Dir) (*host.Host, *sandboxtest.Driver) {
	h := host.New(dir, host.Options{Dir: dir.Root, AgentFile: dir.Path("agent"),
		Holder: sandboxes.Holder{Path: "/proc/self/exe",
			Args: []string{"turn", "sandbox", "hold"}}}, nil)
	d := &sandboxtest.Driver{Dir: dir.Path("guest")}
	h.Launcher.Drivers, h.Launcher.KillGrace = d, time.Second
	return h, d
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	dir := &statedir.Dir{Root: t.TempDir()}
	w.host, w.driver = hostIn(dir)
	w.Runner = turn.New(w.host)
	w.host.Repo.Fault = func(string) error {
		if w.failing.Add(-1) >= 0 {
			return syscall.ENOSPC
		}
		return nil
	}
	t.Cleanup(func() {
		if err := w.host.Repo.Close(); err != nil {
			t.Error(err)
		}
	})
	ok[string](t)(dir.MkdirAll("guest"))
	for name, text := range map[string]string{"agent": "\x7fELF\x02 is not started",
		config.File: "[network]\ndefault = \"off\"\n[limits]\nfree_space = \"1MiB\"\n"} {
		if err := os.WriteFile(dir.Path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	repotest.On(t, w.host.Repo).TemplateOf(image,
		"workdir = \""+filepath.Join(w.driver.Root(), "workspace")+"\"",
		map[string]string{"/given": "by the template\n"})
	return w
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

// run runs a document as the turn of req.
func (w *world) run(ctx context.Context, req plan.Request, text string,
	obs turn.Observer) *turnstone.TurnReport {
	w.t.Helper()
	req.Document = ok[*document.Document](w.t)(document.Parse("test.md", []byte(text)))
	req.Image, req.Add = image, w.adds
	rep := ok[*turnstone.TurnReport](w.t)(w.Run(ctx, req, obs))
	w.kept(rep)
	return rep
}

// kept checks that a turn's receipt is a document, and the same in the report, in the turn's folder
// and in its record, and that its record says what the report says.
func (w *world) kept(rep *turnstone.TurnReport) {
	w.t.Helper()
	if _, err := document.Parse("receipt.md", []byte(rep.Receipt)); err != nil {
		w.t.Errorf("the receipt is no document: %v\n%s", err, rep.Receipt)
	}
	b, err := os.ReadFile(w.host.ReceiptFile(rep.ID))
	if err != nil || string(b) != rep.Receipt {
		w.t.Errorf("the turn's folder has %q (%v), the report %q", b, err, rep.Receipt)
	}
	if rep.Record == "" {
		return
	}
	if b, err = w.host.Repo.Receipt(w.t.Context(), string(rep.ID)); err != nil ||
		string(b) != rep.Receipt {
		w.t.Errorf("the store has %q (%v), the report %q", b, err, rep.Receipt)
	}
	cs := ok[*repo.ContextStore](w.t)(w.host.Context(w.t.Context()))
	rec := ok[*turnstone.TurnRecord](w.t)(cs.ReadRecord(w.t.Context(), rep.Record))
	if rec.Result != rep.Result || rec.Error != rep.Error || rec.State != rep.State ||
		len(rec.Steps) != len(rep.Steps) {
		w.t.Errorf("the record is %+v, the report %+v", rec, rep)
	}
}

// A listener is an observer that writes down what it is told. Its functions may be nil.
type listener struct {
	started func(*document.Step)
	printed func() // at the first output of a step
	ended   func()

	mu     sync.Mutex
	events []string
	out    [3]strings.Builder // of the step that runs
}

func (l *listener) say(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

func (l *listener) Preparing(what string) { l.say("preparing: " + what) }

func (l *listener) StepStarted(s *document.Step) {
	l.say("start " + s.Name)
	if l.started != nil {
		l.started(s)
	}
}

func (l *listener) StepOutput(_ *document.Step, stream turnstone.Stream, p []byte) {
	l.mu.Lock()
	first := l.out[1].Len()+l.out[2].Len() == 0
	l.out[stream].Write(p)
	l.mu.Unlock()
	if first && l.printed != nil {
		l.printed()
	}
}

func (l *listener) StepFinished(s *document.Step, r turnstone.StepReport) {
	l.mu.Lock()
	for stream, name := range []string{1: "stdout", 2: "stderr"} {
		if text := l.out[stream].String(); text != "" {
			l.events = append(l.events, name+" "+strings.TrimSuffix(text, "\n"))
		}
		l.out[stream].Reset()
	}
	l.events = append(l.events, string(r.Status)+" "+s.Name)
	l.mu.Unlock()
	if l.ended != nil {
		l.ended()
	}
}

func step(attrs, script string) string { return "```bash " + attrs + "\n" + script + "\n```\n\n" }

// A path is one way of a turn from its request to its end.
type path struct {
	name string
	text string
	req  plan.Request
	// arrange prepares the way before the turn; cancel is the caller's. It may be nil.
	arrange func(w *world, l *listener, cancel func())
	result  turnstone.Result
	state   bool // the turn leaves a state
}

func paths() []path {
	const passed, failed = turnstone.ResultPassed, turnstone.ResultFailed
	const late, cut = turnstone.ResultTimedOut, turnstone.ResultError
	endless := step("name=a", "echo begun; exec sleep 600") + step("name=b", "echo never")
	killed := func(how func(g *sandboxtest.Guest)) func(*world, *listener, func()) {
		return func(w *world, l *listener, _ func()) {
			var guest *sandboxtest.Guest
			w.driver.Started = func(g *sandboxtest.Guest) { guest = g }
			l.printed = func() { go how(guest) } // not from inside of the connection
		}
	}
	return []path{
		{name: "passed", text: "# Passed\n\nThe author's words.\n\n" +
			step("name=a", "cat ../given; export A=1; mkdir d; cd d; echo one > f") +
			step("name=b", "echo $A $(cat f) ${PWD##*/}; echo aside >&2"),
			result: passed, state: true},
		{name: "no steps", text: "# Nothing\n", result: passed, state: true},
		{name: "a failed step", text: step("name=a", "echo one > f; exit 3") + step("name=b", "cat f"),
			result: failed, state: true},
		{name: "a failed step that may fail",
			text:   step("name=a continue-on-error", "exit 3") + step("name=b", "echo reached"),
			result: passed, state: true},
		{name: "a step that its author skips", text: step("name=a skip", "exit 3") +
			step("name=b", "echo reached"), result: passed, state: true},
		{name: "a step whose time is up", text: step("name=a timeout=200ms", "sleep 600") +
			step("name=b", "echo never"), result: late, state: true},
		{name: "a step whose time is up may fail",
			text: step("name=a timeout=200ms continue-on-error", "sleep 600") +
				step("name=b", "echo reached"), result: passed, state: true},
		{name: "the turn's time is up", text: "---\ntimeout: 200ms\n---\n" +
			step("name=a continue-on-error", "sleep 600") + step("name=b", "echo never"),
			result: late, state: true},
		{name: "the turn's time is up while files are added", text: step("name=a", "echo never"),
			req: plan.Request{Timeout: 1}, arrange: func(w *world, _ *listener, _ func()) {
				w.adds = []document.Transfer{{Path: w.host.Dir.Path("agent"), Dest: "f"}}
			}, result: late},
		{name: "the caller gives up before the sandbox is there", text: step("name=a", "echo never"),
			arrange: func(_ *world, _ *listener, cancel func()) { cancel() }, result: cut},
		{name: "the caller gives up during a step", text: endless,
			arrange: func(_ *world, l *listener, cancel func()) { l.printed = cancel }, result: cut},
		{name: "the machine dies", text: endless,
			arrange: killed(func(g *sandboxtest.Guest) {
				g.Die(turnstone.Errorf("test.run", turnstone.KindDead, "machine", "kernel panic"))
			}), result: cut},
		{name: "the agent's channel ends before its machine", text: endless,
			arrange: killed(func(g *sandboxtest.Guest) {
				_ = g.Far.Close()
				g.Die(turnstone.Errorf("test.run", turnstone.KindDead, "machine", "power off"))
			}), result: cut},
		{name: "another writes to the agent's channel", text: endless,
			arrange: killed(func(g *sandboxtest.Guest) { _, _ = g.Far.Write([]byte("hello, host")) }),
			result:  cut},
		{name: "no substrate works", text: step("name=a", "echo never"),
			req: plan.Request{Substrate: "qemu"}, result: cut},
		{name: "the turn's state cannot be kept", text: step("name=a", "echo x > f"),
			arrange: func(w *world, l *listener, _ func()) {
				l.ended = func() { w.failing.Store(1) } // once
			}, result: cut},
		{name: "nothing can be kept", text: step("name=a", "echo x > f"),
			arrange: func(w *world, l *listener, _ func()) {
				l.ended = func() { w.failing.Store(1 << 30) }
			}, result: cut},
		{name: "the host's disk is nearly full", text: endless,
			arrange: func(w *world, l *listener, _ func()) {
				free := new(atomic.Uint64)
				free.Store(1 << 40)
				w.host.Space.Every = time.Millisecond
				w.host.Space.Statfs = func(string) (total, left uint64, err error) {
					return 1 << 41, free.Load(), nil
				}
				l.printed = func() { free.Store(600 << 10) } // of 1 MiB, and half is enough to keep it
			}, result: cut, state: true},
		{name: "secrets", text: step("name=a",
			"echo \"it is $TOKEN\"; echo $TOKEN >&2; export T=$TOKEN") +
			step("name=b", "echo ${TOKEN:0:3}${TOKEN:3}; exit 1"),
			req: plan.Request{Secrets: []string{"TOKEN=tok-5f3a-XYZZY"}}, result: failed, state: true},
		{name: "a secret in a file", text: step("name=a", "echo $TOKEN > f"),
			req: plan.Request{Secrets: []string{"TOKEN=tok-5f3a-XYZZY"}}, result: cut},
		{name: "a file that is not there is fetched", text: step("name=a", "true"),
			req:    plan.Request{Get: []document.Transfer{{Path: "none", Dest: "none"}}},
			result: cut, state: true},
		{name: "after a failed step, a file that is not there is fetched", text: step("name=a", "exit 5"),
			req:    plan.Request{Get: []document.Transfer{{Path: "none", Dest: "none"}}},
			result: failed, state: true},
	}
}

// TestPaths runs a turn along each path. testdata/paths.txt has what its observer was told, its
// error, and its receipt. With -update the file is written anew.
func TestPaths(t *testing.T) {
	const file = "testdata/paths.txt"
	got := make([]string, len(paths()))
	t.Run("each", func(t *testing.T) {
		for i, p := range paths() {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				got[i] = p.golden(t)
			})
		}
	})
	text := strings.Join(got, "\n")
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := ok[[]byte](t)(os.ReadFile(file))
	for i, p := range paths() {
		if got[i] != "" && !strings.Contains(string(want), got[i]) {
			t.Errorf("%s: not as in %s:\n%s", p.name, file, got[i])
		}
	}
	if !t.Failed() && len(text) != len(want) {
		t.Errorf("%s has more than the paths", file)
	}
}

// golden runs a turn along p and returns what is known of it, without what differs each time.
func (p path) golden(t *testing.T) string {
	w, l := newWorld(t), &listener{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if p.arrange != nil {
		p.arrange(w, l, cancel)
	}
	rep := w.run(ctx, p.req, p.text, l)
	if rep.Result != p.result || (rep.State != "") != p.state {
		t.Errorf("%s, state %q: %s\n%s", rep.Result, rep.State, rep.Error, rep.Receipt)
	}
	if strings.Contains(rep.Receipt+strings.Join(l.events, ""), "XYZZY") {
		t.Errorf("the secret is told:\n%s\n%s", l.events, rep.Receipt)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "=== %s\n", p.name)
	for _, e := range l.events {
		fmt.Fprintf(&b, "told: %s\n", strings.ReplaceAll(e, "\n", "\n      "))
	}
	fmt.Fprintf(&b, "report: %s %s: %s (%s)\n", rep.Result, rep.Kind, rep.Error, rep.Hint)
	b.WriteString(rep.Receipt)
	return w.normal(b.String())
}

// normal replaces what differs each time.
func (w *world) normal(text string) string {
	text = strings.ReplaceAll(text, `\_`, "_")
	// The sandbox's root is below the state directory, whose path a receipt does not have.
	text = strings.ReplaceAll(text, w.driver.Root(), "")
	text = strings.ReplaceAll(text, `\$TURN_HOME`, "$TURN_HOME")
	text = strings.ReplaceAll(text, strings.Replace(w.driver.Root(), w.host.Dir.Root, "$TURN_HOME", 1),
		"")
	// The guest's disk is the host's.
	text = strings.ReplaceAll(text, " · the sandbox's disk is full (more with disk:)", "")
	text = strings.ReplaceAll(text, w.host.Dir.Root, "$TURN_HOME")
	for pattern, by := range map[string]string{
		`\b(t|s|sb)_[0-9a-z]{18}\b`:               "${1}_ID",
		`(template|fs|layer): sha256:[0-9a-f]+`:   "$1: sha256:DIGEST",
		`started: \S+`:                            "started: TIME",
		`duration: \S+`:                           "duration: TIME",
		` · ([0-9.]+ (µs|ms|s|min)|<1 ms)( ?\\?)`: " · TIME$3",
		`packs/[0-9a-f]{64}`:                      "packs/DIGEST",
		`(?m)^\{"payloadType":.*$`:                "ENVELOPE",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, by)
	}
	return text
}
