package turn

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// end runs the end of a turn on session s as Run does, with these files in the place
// of those that a machine has changed.
func end(t *testing.T, x *Runner, files map[string]string) (*run, error) {
	t.Helper()
	return endWith(t, x, files, nil)
}

// endWith is end of a turn whose machine was kept.
func endWith(t *testing.T, x *Runner, files map[string]string, vm *vmSnapshot) (*run, error) {
	t.Helper()
	ctx := t.Context()
	r := &run{x: x, plan: &plan.Plan{Image: "base", Session: "s", Branch: plan.DefaultBranch}, doc: parse(t, "# A turn\n"), obs: &observer{}, clock: newStopwatch()}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now(), Result: turnstone.ResultPassed}
	dir, err := x.home.MkdirAll("turns", string(r.info.ID))
	if err != nil {
		return nil, err
	}
	r.dir = dir
	cs, err := x.context(ctx)
	if err != nil {
		return nil, err
	}
	if r.at, err = take(ctx, cs, r.plan, nil, r.info.ID, "a turn"); err != nil {
		return nil, err
	}
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return nil, err
	}
	l := &collected{batch: batch, tree: treetest.Make(t, batch, treetest.Texts(files)...)}
	b, err := json.Marshal(turnstone.TurnState{Format: repo.StateFormat, Image: "base", Cwd: "/",
		Tree: l.tree, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if l.state, err = batch.Put(ctx, b); err != nil {
		_ = batch.Close()
		return nil, err
	}
	r.openSteps()
	if r.collected, r.snapshot = l, vm; vm != nil {
		r.info.Snapshot = document.SnapshotVM
	}
	defer func() { r.snapshot.remove() }()
	r.finish(ctx)
	return r, nil
}

// whole checks that each turn of s is there as a whole or left nothing, that main
// ends with the newest one that has a state, and returns their number.
func whole(t *testing.T, dir string) (kept int) {
	t.Helper()
	ctx := t.Context()
	x := New(&statedir.Dir{Root: dir})
	defer func() { _ = x.Close() }()
	if rep := ok[*turnstone.FsckReport](t)(x.repo.Fsck(ctx)); !rep.OK() {
		t.Errorf("fsck: %+v", rep.Problems)
	}
	g := ok[*turnstone.Graph](t)(x.repo.Session(ctx, "s"))
	var newest turnstone.TurnID
	slices.Reverse(g.Turns) // the oldest first
	for _, turn := range g.Turns {
		switch {
		case turn.Status != turnstone.TurnDone:
			t.Errorf("turn %d is %s", turn.Number, turn.Status)
		case turn.State == "" && turn.Result != turnstone.ResultError:
			t.Errorf("turn %d left nothing, and %s", turn.Number, turn.Result)
		case turn.State != "":
			if turn.Parent() != newest {
				t.Errorf("turn %d stands on %q, not on %q", turn.Number, turn.Parent(), newest)
			}
			newest, kept = turn.ID, kept+1
			if err := x.repo.ListFiles(ctx, string(turn.ID), "/", true,
				func(turnstone.FileInfo) error { return nil }); err != nil {
				t.Error(err)
			}
			if b, err := x.repo.Receipt(ctx, string(turn.ID)); err != nil || !strings.Contains(string(b), "result: passed") {
				t.Errorf("turn %d: %v\n%s", turn.Number, err, b)
			}
		}
	}
	if len(g.Branches) != 1 || g.Branches[0].Head != newest {
		t.Errorf("the branches are %+v, and the newest turn %s", g.Branches, newest)
	}
	return kept
}

// faultAt is a fault function that calls fail at the nth operation.
func faultAt(n int, fail func() error) func(string) error {
	return func(string) error {
		if n--; n == 0 {
			return fail()
		}
		return nil
	}
}

// sameReceipt checks that r's receipt is the same in the state directory, in the turn that is
// returned and in the turn's record, if there is one.
func sameReceipt(t *testing.T, x *Runner, r *run) {
	t.Helper()
	want := r.turn().Receipt
	if !strings.Contains(want, string(r.info.Result)) {
		t.Errorf("no receipt of a turn that ended with %s: %q", r.info.Result, want)
	}
	if b, err := os.ReadFile(filepath.Join(r.dir, "receipt.md")); err != nil || string(b) != want {
		t.Errorf("the file is %q (%v), and the turn has %q", b, err, want)
	}
	if r.recordDigest == "" {
		return
	}
	if b, err := x.repo.Receipt(t.Context(), string(r.info.ID)); err != nil || string(b) != want {
		t.Errorf("the record has %q (%v), and the turn %q", b, err, want)
	}
}

// TestCommitFaults lets each write of a commit fail, as on a full disk: the caller
// is told, the turn is in the session without a state, and the next one works.
func TestCommitFaults(t *testing.T) {
	dir := t.TempDir()
	first := New(&statedir.Dir{Root: dir})
	if _, err := end(t, first, map[string]string{"/first": "1"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := 1; ; n++ {
		x, hit := New(&statedir.Dir{Root: dir}), false
		x.repo.Fault = faultAt(n, func() error { hit = true; return syscall.ENOSPC })
		r, err := end(t, x, map[string]string{"/file": strconv.Itoa(n)})
		switch {
		case err != nil || r.info.Result == turnstone.ResultPassed:
		case !strings.Contains(r.info.Error, "no space left") || r.info.FSHash != "" || r.diverged:
			t.Errorf("write %d: %+v", n, r.info)
		default:
			failed++
			// The same process goes on: nothing is held by the turn that failed.
			cs := ok[*repo.ContextStore](t)(x.context(t.Context()))
			if turn := ok[turnstone.Turn](t)(cs.DB.Turn(t.Context(),
				r.info.ID)); turn.Status != turnstone.TurnDone ||
				turn.Result != turnstone.ResultError {
				t.Errorf("write %d: the turn is %+v", n, turn)
			}
			if again, err := end(t, x, map[string]string{"/again": strconv.Itoa(n)}); err != nil || again.info.Result != turnstone.ResultPassed {
				t.Errorf("write %d: the next turn: %v, %+v", n, err, again)
			}
		}
		if err == nil {
			sameReceipt(t, x, r)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		whole(t, dir)
		if !hit || t.Failed() {
			break
		}
	}
	if failed < 3 {
		t.Errorf("%d commits failed", failed)
	}
}

// crashVar makes TestCommitCrashes the program that dies: "DIR N".
const crashVar = "TURN_TEST_CRASH"

// TestCommitCrashes lets the process die before each write of a commit: either the
// turn is there or it is not.
func TestCommitCrashes(t *testing.T) {
	if at := os.Getenv(crashVar); at != "" {
		var dir string
		var n int
		if _, err := fmt.Sscan(at, &dir, &n); err != nil {
			t.Fatal(err)
		}
		x := New(&statedir.Dir{Root: dir})
		x.repo.Fault = faultAt(n, func() error { os.Exit(77); return nil })
		if r, err := end(t, x, map[string]string{"/file": at}); err != nil || r.info.Result != turnstone.ResultPassed {
			t.Fatalf("%v, %+v", err, r)
		}
		return
	}
	dir := t.TempDir()
	for n, kept := 1, 0; ; n++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCommitCrashes$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", crashVar, dir, n))
		out, err := cmd.CombinedOutput()
		code := cmd.ProcessState.ExitCode()
		if code != 0 && code != 77 {
			t.Fatalf("%v\n%s", err, out)
		}
		if _, err := os.Stat(dir + "/context.db"); err == nil {
			if _, err := New(&statedir.Dir{Root: dir}).repo.Session(t.Context(), "s"); err == nil {
				now := whole(t, dir)
				if code == 0 && now != kept+1 || now < kept || now > kept+1 {
					t.Errorf("write %d: %d turns are kept, and %d before", n, now, kept)
				}
				kept = now
			}
		}
		if code == 0 {
			if n < 4 {
				t.Errorf("only %d writes", n)
			}
			return
		}
	}
}

// TestQuotedIsNotKept: what a state would keep is searched for all forms in which bash writes a
// value down: in contents, names, targets of links and attributes.
func TestQuotedIsNotKept(t *testing.T) {
	const value = "p&ss'$XYZZYrd"
	for _, form := range []string{value, `declare -x API_TOKEN="p&ss'\$XYZZYrd"`, `COPY='p&ss'\''$XYZZYrd'`, `p\&ss\'\$XYZZYrd`} {
		set := secrets(t, "TOKEN="+value)
		contents := newLeakWatch(set)
		if _, err := contents.inspect("/root/env.sh").Write([]byte("x\n" + form + "\n")); err != nil {
			t.Fatal(err)
		}
		for where, err := range map[string]error{
			"contents": contents.found(), "name": newLeakWatch(set).check("/"+form, &tree.Attr{}), "target": newLeakWatch(set).check("/x", &tree.Attr{Target: form}),
			"attribute": newLeakWatch(set).check("/x", &tree.Attr{Xattrs: []tree.Xattr{{Name: "user.x", Value: []byte(form)}}}),
		} {
			if !errors.Is(err, secret.ErrFound) || strings.Contains(err.Error(), "XYZZY") {
				t.Errorf("%s of %s: %v", where, form, err)
			}
		}
		in := &input{dest: "/x"}
		if _, err := in.writer(t.TempDir(), set).Write([]byte(form)); err != nil || in.scan.Found() != "TOKEN" {
			t.Errorf("%s is kept as an input: %v", form, err)
		}
		_ = in.file.Close()
	}
}

// TestInputWithSecret: a file that holds a value is not kept as an input, however its
// bytes come.
func TestInputWithSecret(t *testing.T) {
	set := ok[*secret.Set](t)(secret.New([]string{"TOKEN=tok-5f3a-XYZZY"}))
	for _, parts := range [][]string{{"a tok-5f3a-XYZZY"}, {"a tok-5f3", "a-XYZ", "ZY b"}} {
		in := &input{dest: "/x"}
		w := in.writer(t.TempDir(), set)
		for _, p := range parts {
			if _, err := w.Write([]byte(p)); err != nil {
				t.Fatal(err)
			}
		}
		st, err := in.file.Stat()
		if err != nil || !in.over || in.scan.Found() != "TOKEN" || st.Size() != 0 {
			t.Errorf("%q: %+v, %v, %v", parts, in, st.Size(), err)
		}
		_ = in.file.Close()
	}
}

// TestRefusedTurnBeginsNoSession: a branch that cannot be there leaves nothing behind.
func TestRefusedTurnBeginsNoSession(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	for _, session := range []string{"new", ""} {
		id := turnstone.NewTurnID()
		if _, err := take(ctx, p.cs, &plan.Plan{Session: session, Branch: "nowhere"}, nil, id, "a turn"); turnstone.KindOf(err) != turnstone.KindNotFound || turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v (%s)", session, err, turnstone.HintOf(err))
		}
	}
	if all := ok[[]turnstone.SessionInfo](t)(p.x.repo.Sessions(ctx)); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestHeldEndsWithItsSession: what is written of machines goes with the session or
// branch, also where the machine is gone already, and that of others stays.
func TestHeldEndsWithItsSession(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s, other := p.Session("s"), p.Session("other")
	if _, err := p.x.home.MkdirAll("machines"); err != nil {
		t.Fatal(err)
	}
	p.Turn(s, "main")
	ok[turnstone.Branch](t)(p.x.repo.Fork(ctx, "s@1", "b"))
	for _, path := range []string{p.x.pausedPath(s.ID, "main"), p.x.pausedPath(s.ID, "b"), p.x.pausedPath(other.ID, "main")} {
		h := &pausedMachine{x: p.x, path: path, Sandbox: turnstone.NewSandboxID()}
		if err := h.write(); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int { return len(ok[[]os.DirEntry](t)(os.ReadDir(p.x.home.Path("machines")))) }
	if err := p.x.RemoveBranch(ctx, "s", "b"); err != nil || left() != 2 {
		t.Errorf("%v, %d left", err, left())
	}
	lock := ok[*statedir.Lock](t)(statedir.TryAcquire(p.x.pausedPath(s.ID, "main") + ".lock"))
	if err := p.x.endPaused(ctx, s.ID, ""); err != nil || left() != 3 { // a turn uses it
		t.Errorf("%v, %d left", err, left())
	}
	lock.Release()
	if _, err := p.x.RemoveSession(ctx, "s"); err != nil || left() != 1 {
		t.Errorf("%v, %d left", err, left())
	}
	for name, kind := range map[string]turnstone.Kind{"main": turnstone.KindInvalid, "../../x": turnstone.KindInvalid, "": turnstone.KindInvalid} {
		p.Turn(other, "main")
		if _, err := p.x.ForkLive(ctx, "other", name); turnstone.KindOf(err) != kind {
			t.Errorf("fork to %q: %v", name, err)
		}
	}
}

func secrets(t testing.TB, pairs ...string) *secret.Set { return ok[*secret.Set](t)(secret.New(pairs)) }
