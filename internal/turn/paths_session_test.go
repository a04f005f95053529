package turn_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/turn/paused"
	"turnstone.dev/turnstone/internal/turn/replay"
	"turnstone.dev/turnstone/sandboxes"
)

// TestMain makes this program the holder of a session's machine, too, as turn is.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[0] == "turn" && os.Args[2] == "hold" {
		if err := hold(os.Args[4], turnstone.SandboxID(os.Args[5])); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func hold(home string, id turnstone.SandboxID) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	h, _ := hostIn(&statedir.Dir{Root: home})
	open := func(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec,
		progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
		return provision.OpenMachine(ctx, h, id, spec, progress)
	}
	return sandboxes.NewStore(home).Hold(ctx, id, open, os.Stdin, os.NewFile(3, "reports"),
		slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// passes runs a step as the turn of req, which passes and prints want.
func (w *world) passes(req plan.Request, script, want string) *turnstone.TurnReport {
	w.t.Helper()
	rep := w.run(w.t.Context(), req, step("", script), nil)
	if rep.Result != turnstone.ResultPassed || rep.Steps[0].Stdout != want {
		w.t.Fatalf("%s (%s)\n%s\nwant %q", rep.Error, rep.Hint, rep.Receipt, want)
	}
	return rep
}

// files returns the names and the texts of the files that a turn has left.
func (w *world) files(ref turnstone.TurnID) string {
	w.t.Helper()
	var all []string
	err := w.host.Repo.ListFiles(w.t.Context(), string(ref), "/", true,
		func(f turnstone.FileInfo) error {
			if f.Type != "dir" {
				all = append(all, f.Path)
			}
			return nil
		})
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestNextTurns: each turn of a session begins with the files, the environment and the directory
// of the turn below, on its own branch.
func TestNextTurns(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), plan.Request{Session: "s"}
	first := w.passes(s, "echo 1 > f; echo 1 > g; mkdir d; echo x > d/x; export V=1; cd d", "")
	second := w.passes(s, "cat ../f x; echo $V; rm ../g ../../given; echo 2 > ../f; export V=2",
		"1\nx\n1\n")
	if got := w.files(first.ID); got != "/given /workspace/d/x /workspace/f /workspace/g" {
		t.Errorf("the first turn left %s", got)
	}
	if got := w.files(second.ID); got != "/workspace/d/x /workspace/f" ||
		second.Start != "turn 1" || *second.Layer != (turnstone.LayerInfo{Changed: 3, Removed: 2,
		Digest: second.Layer.Digest}) {
		t.Errorf("the second turn, on %s, left %s: %+v", second.Start, got, second.Layer)
	}
	third := w.passes(s, "cat ../f; ls ..; echo $V ${PWD##*/}", "2\nd\nf\n2 d\n")
	if third.State != second.State || third.FSHash != second.FSHash || third.Layer.Digest != "" {
		t.Errorf("a turn that changes nothing left %+v\nafter %+v", third, second)
	}
	ok[turnstone.Branch](t)(w.host.Repo.Fork(t.Context(), "s@1", "b"))
	b := plan.Request{Session: "s", Branch: "b"}
	on := w.passes(b, "cat ../f ../g; echo b > ../f", "1\n1\n")
	w.passes(b, "cat ../f", "b\n")
	if last := w.passes(s, "cat ../f", "2\n"); last.Branch != "main" || on.Branch != "b" ||
		on.Start != "turn 1" || !slices.Equal(last.Parents, []turnstone.TurnID{third.ID}) {
		t.Errorf("on the branch: %+v\non main: %+v", on, last)
	}
	if rep := ok[*turnstone.FsckReport](t)(w.host.Repo.Fsck(t.Context())); !rep.OK() {
		t.Errorf("fsck: %+v", rep.Problems)
	}
}

// TestDiverges: a turn whose branch has moved on meanwhile becomes the head of a new branch.
func TestDiverges(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t), plan.Request{Session: "s"}
	first := w.passes(s, "echo 1 > f", "")
	p := repotest.On(t, w.host.Repo)
	l := &listener{ended: func() {
		p.Turn(p.Session("s"), "main", treetest.Texts(map[string]string{"/else": "x"})...)
	}}
	rep := w.run(t.Context(), s, step("", "echo 2 > f"), l)
	if !rep.Diverged || rep.Branch == "main" || rep.State == "" ||
		!slices.Equal(rep.Parents, []turnstone.TurnID{first.ID}) ||
		!strings.Contains(rep.Receipt, "branch: "+rep.Branch+"\n") {
		t.Errorf("%+v", rep)
	}
	if got := w.files("s"); got != "/else" {
		t.Errorf("main has %s", got)
	}
}

// TestAddsAndGets: what is put into a sandbox is kept with the turn, and a folder is fetched.
func TestAddsAndGets(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("given\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.adds = []document.Transfer{{Path: in, Dest: "deep/f"}}
	first := w.passes(plan.Request{Get: []document.Transfer{{Path: "deep", Dest: out}}},
		"cat deep/f; echo made > deep/g", "given\n")
	for name, want := range map[string]string{"f": "given\n", "g": "made\n"} {
		if b, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(b) != want {
			t.Errorf("fetched %s: %q, %v", name, b, err)
		}
	}
	if err := os.Remove(in); err != nil { // a replay takes the copy
		t.Fatal(err)
	}
	if rep := w.replay(first, replay.Options{}); !rep.Same || rep.Turn.Steps[0].Stdout != "given\n" {
		t.Errorf("%+v\n%s", rep, rep.Turn.Receipt)
	}
}

func (w *world) replay(of *turnstone.TurnReport, o replay.Options) *turnstone.ReplayReport {
	w.t.Helper()
	cs := ok[*repo.ContextStore](w.t)(w.host.Context(w.t.Context()))
	return ok[*turnstone.ReplayReport](w.t)(replay.Run(w.t.Context(), w.Runner, cs, string(of.ID), o,
		nil))
}

// TestReplays: a replay begins where the turn began, ends as it ended unless something outside of
// the turn's record counts, and is in no session.
func TestReplays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := plan.Request{Session: "s", Secrets: []string{"TOKEN=tok-5f3a-XYZZY"}}
	outside, set := outside(t)
	set("before\n")
	w.passes(plan.Request{Session: "s"}, "echo 1 > f", "")
	same := w.passes(secret, "cat f; echo 2 > f; echo $TOKEN; export A=1", "1\n[secret TOKEN]\n")
	other := w.passes(plan.Request{Session: "s"}, "cat f; cat "+outside+" | tee f; export B=$(cat f)",
		"2\nbefore\n")
	if rep := w.replay(same, replay.Options{Secrets: secret.Secrets}); !rep.Same ||
		rep.FSHash != same.FSHash || rep.Turn.FSHash != same.FSHash || rep.Turn.Session != "" {
		t.Errorf("%+v\n%s", rep, rep.Turn.Receipt)
	}
	cs := ok[*repo.ContextStore](t)(w.host.Context(t.Context()))
	_, err := replay.Run(t.Context(), w.Runner, cs, string(same.ID), replay.Options{}, nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
		t.Errorf("without the secret: %v (%s)", err, turnstone.HintOf(err))
	}
	set("now\n")
	rep := w.replay(other, replay.Options{})
	if rep.Same || len(rep.Steps) != 1 || !slices.Equal(rep.Steps[0].What,
		[]string{"standard output"}) || len(rep.Changes) != 1 ||
		rep.Changes[0] != (turnstone.FileDifference{Path: "/workspace/f", What: "differs"}) ||
		!slices.Equal(rep.Env, []string{"B"}) || rep.Cwd {
		t.Errorf("%+v", rep)
	} else if s := rep.Steps[0]; s.Index != 1 || rep.Count != 1 || s.Stderr != nil ||
		*s.Stdout != (turnstone.OutputCompare{OldBytes: 9, NewBytes: 6, Line: 2, Old: "before",
			New: "now"}) {
		t.Errorf("%+v, %+v", s, s.Stdout)
	}
	if g := ok[*turnstone.Graph](t)(w.host.Repo.Session(t.Context(), "s")); len(g.Turns) != 3 {
		t.Errorf("the session has %d turns", len(g.Turns))
	}
}

// TestMachineStays: the machine of a session stays paused under its holder, another process, and
// the next turn resumes it: with what no state has. A machine that a turn needs otherwise, or that
// died, is made anew on the state.
func TestMachineStays(t *testing.T) {
	// Not in parallel: a process that another test starts holds the machine's lock until its exec.
	w, s := newWorld(t), plan.Request{Session: "s", Lifetime: turnstone.LifetimeSession}
	t.Cleanup(func() {
		if _, err := paused.RemoveSession(context.Background(), w.host, "s"); err != nil {
			t.Error(err)
		}
	})
	memory := filepath.Join(w.driver.Dir, "memory") // beside the root: no state has it
	w.passes(s, "echo 1 > f; echo here > "+memory+"; export V=1", "")
	second := w.passes(s, "cat f "+memory+"; echo $V; echo 2 > f", "1\nhere\n1\n")
	if second.Start != "the paused machine of turn 1" ||
		!strings.Contains(second.Receipt, "lifetime: session") {
		t.Errorf("the second turn begins on %s\n%s", second.Start, second.Receipt)
	}
	if got := w.files(second.ID); got != "/given /workspace/f" {
		t.Errorf("the second turn left %s", got)
	}
	s.Memory = 2 << 30
	third := w.passes(s, "cat f; echo $V", "2\n1\n")
	if third.Start != "turn 2, "+
		"because the session's machine does not fit the request" {
		t.Errorf("the third turn begins on %s", third.Start)
	}
	held := sandboxes.NewStore(w.host.Dir.Root)
	for _, info := range ok[[]sandboxes.Info](t)(held.List(t.Context())) {
		if err := held.Stop(t.Context(), info.ID); err != nil {
			t.Error(err)
		}
	}
	l := &listener{}
	if rep := w.run(t.Context(), s, step("", "cat f"), l); rep.Start != "turn 3" ||
		rep.Steps[0].Stdout != "2\n" || !strings.Contains(strings.Join(l.events, "\n"),
		"the session's machine is gone") {
		t.Errorf("after its end: %q\n%s", l.events, rep.Receipt)
	}
}

// TestCheckpoints: the receipt is written once before the sandbox is made, once before each step,
// and once at the end. A receipt names where its turn was, in case the process dies there.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fd := ok[int](t)(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))
	defer func() { _ = unix.Close(fd) }()
	now := func() string {
		folders := ok[[]string](t)(filepath.Glob(w.host.Dir.Path("turns", "*")))
		return string(ok[[]byte](t)(os.ReadFile(filepath.Join(folders[0], "receipt.md"))))
	}
	var seen []string
	w.driver.Started = func(*sandboxtest.Guest) {
		seen = append(seen, now())
		folders := ok[[]string](t)(filepath.Glob(w.host.Dir.Path("turns", "*")))
		// The creations are between the renames: of events that are alike only one is told.
		ok[int](t)(unix.InotifyAddWatch(fd, folders[0], unix.IN_MOVED_TO|unix.IN_CREATE))
	}
	l := &listener{started: func(*document.Step) { seen = append(seen, now()) }}
	rep := w.run(t.Context(), plan.Request{}, step("name=a", "echo of a")+step("name=b skip", "")+
		step("name=c", "echo of c"), l)
	if n := moved(t, fd, "receipt.md"); n != 3 || len(seen) != 3 {
		t.Errorf("%d receipts follow the first, and %d were seen", n, len(seen))
	}
	for i, want := range []string{"the executor ended before the first step",
		"the executor ended during a", "the executor ended during c"} {
		doc := ok[*document.Document](t)(document.Parse("receipt.md", []byte(seen[i])))
		if !strings.Contains(seen[i], "error: "+want+"\n") || len(doc.Steps) != 3 {
			t.Errorf("receipt %d:\n%s", i, seen[i])
		}
		if has := strings.Contains(seen[i], "```text\nof a\n```"); has != (i == 2) {
			t.Errorf("receipt %d has the output of a: %v", i, has)
		}
	}
	if strings.Contains(rep.Receipt, "the executor ended") {
		t.Errorf("%s", rep.Receipt)
	}
}

// moved returns how often a file was renamed to name, according to fd.
func moved(t *testing.T, fd int, name string) (n int) {
	t.Helper()
	buf := make([]byte, 64<<10)
	size, err := unix.Read(fd, buf)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	for at := 0; at < size; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
		at += unix.SizeofInotifyEvent
		to := string(bytes.TrimRight(buf[at:at+int(e.Len)], "\x00"))
		if e.Mask&unix.IN_MOVED_TO != 0 && to == name {
			n++
		}
		at += int(e.Len)
	}
	return n
}
