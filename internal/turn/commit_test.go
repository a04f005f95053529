package turn

import (
	"encoding/json"
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
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turn/netrecord"
	"turnstone.dev/turnstone/internal/turn/place"
	"turnstone.dev/turnstone/internal/turn/snapshot"
	"turnstone.dev/turnstone/internal/turn/state"
)

// An ended turn is stored as c.
type ended struct {
	*run
	c committed
}

// end runs the end of a turn on session s like Run, with these files as the machine's changes.
func end(t *testing.T, x *Runner, files map[string]string) (*ended, error) {
	t.Helper()
	return endWith(t, x, files, nil)
}

// endWith is end of a turn whose machine is kept.
func endWith(t *testing.T, x *Runner, files map[string]string, vm *snapshot.Snapshot) (
	*ended, error) {
	t.Helper()
	ctx := t.Context()
	r := &run{host: x.host, tape: &netrecord.Tape{}, plan: &plan.Plan{Image: "base", Session: "s",
		Branch: plan.DefaultBranch}, doc: parse(t, "# A turn\n"), obs: &observer{},
		clock: provision.NewStopwatch()}
	r.info = document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now(),
		Result: turnstone.ResultPassed}
	dir, err := x.host.Dir.MkdirAll("turns", string(r.info.ID))
	if err != nil {
		return nil, err
	}
	r.folder = &repo.TurnFolder{Dir: dir}
	cs, err := x.host.Context(ctx)
	if err != nil {
		return nil, err
	}
	if r.at, err = place.Take(ctx, cs, place.Request{ID: r.info.ID, Title: "a turn",
		Session: r.plan.Session, Branch: r.plan.Branch, Repo: x.host.Repo}); err != nil {
		return nil, err
	}
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return nil, err
	}
	l := &state.Collected{Batch: batch, Tree: treetest.Make(t, batch, treetest.Texts(files)...)}
	b, err := json.Marshal(turnstone.TurnState{Format: repo.StateFormat, Image: "base", Cwd: "/",
		Tree: l.Tree, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if l.State, err = batch.Put(ctx, b); err != nil {
		_ = batch.Close()
		return nil, err
	}
	r.openSteps()
	if r.snapshot = vm; vm != nil {
		r.info.Snapshot = document.SnapshotVM
	}
	defer func() { r.snapshot.Remove() }()
	return &ended{r, r.finish(ctx, l)}, nil
}

// whole checks that each turn of s is complete or left nothing, and that main ends with the newest
// turn that has a state. It returns the number of turns.
func whole(t *testing.T, dir string) (kept int) {
	t.Helper()
	ctx := t.Context()
	x := testRunner(&statedir.Dir{Root: dir})
	defer func() { _ = x.host.Repo.Close() }()
	if rep := ok[*turnstone.FsckReport](t)(x.host.Repo.Fsck(ctx)); !rep.OK() {
		t.Errorf("fsck: %+v", rep.Problems)
	}
	g := ok[*turnstone.Graph](t)(x.host.Repo.Session(ctx, "s"))
	var newest turnstone.TurnID
	slices.Reverse(g.Turns) // oldest first
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
			if err := x.host.Repo.ListFiles(ctx, string(turn.ID), "/", true,
				func(turnstone.FileInfo) error { return nil }); err != nil {
				t.Error(err)
			}
			if b, err := x.host.Repo.Receipt(ctx, string(turn.ID)); err != nil ||
				!strings.Contains(string(b), "result: passed") {
				t.Errorf("turn %d: %v\n%s", turn.Number, err, b)
			}
		}
	}
	if len(g.Branches) != 1 || g.Branches[0].Head != newest {
		t.Errorf("the branches are %+v, and the newest turn %s", g.Branches, newest)
	}
	return kept
}

// faultAt returns a fault function that calls fail at the nth operation.
func faultAt(n int, fail func() error) func(string) error {
	return func(string) error {
		if n--; n == 0 {
			return fail()
		}
		return nil
	}
}

// sameReceipt checks that r's receipt is equal in the state directory, in the report and in the
// turn's record, if there is one.
func sameReceipt(t *testing.T, x *Runner, r *ended) {
	t.Helper()
	want := r.report(r.c).Receipt
	if !strings.Contains(want, string(r.info.Result)) {
		t.Errorf("no receipt of a turn that ended with %s: %q", r.info.Result, want)
	}
	if b, err := os.ReadFile(filepath.Join(r.folder.Dir, "receipt.md")); err != nil ||
		string(b) != want {
		t.Errorf("the file is %q (%v), and the turn has %q", b, err, want)
	}
	if r.c.record == "" {
		return
	}
	if b, err := x.host.Repo.Receipt(t.Context(), string(r.info.ID)); err != nil ||
		string(b) != want {
		t.Errorf("the record has %q (%v), and the turn %q", b, err, want)
	}
}

// TestCommitFaults lets each write of a commit fail, as on a full disk: the caller gets the error,
// the session has the turn without a state, and the next turn works.
func TestCommitFaults(t *testing.T) {
	dir := t.TempDir()
	first := testRunner(&statedir.Dir{Root: dir})
	if _, err := end(t, first, map[string]string{"/first": "1"}); err != nil {
		t.Fatal(err)
	}
	if err := first.host.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := 1; ; n += testsize.Step(2) {
		x, hit := testRunner(&statedir.Dir{Root: dir}), false
		x.host.Repo.Fault = faultAt(n, func() error { hit = true; return syscall.ENOSPC })
		r, err := end(t, x, map[string]string{"/file": strconv.Itoa(n)})
		switch {
		case err != nil || r.info.Result == turnstone.ResultPassed:
		case !strings.Contains(r.info.Error, "no space left") || r.info.FSHash != "" ||
			r.c.diverged:
			t.Errorf("write %d: %+v", n, r.info)
		default:
			failed++
			// The failed turn must hold nothing in the process, which continues.
			cs := ok[*repo.ContextStore](t)(x.host.Context(t.Context()))
			if turn := ok[turnstone.Turn](t)(cs.DB.Turn(t.Context(),
				r.info.ID)); turn.Status != turnstone.TurnDone ||
				turn.Result != turnstone.ResultError {
				t.Errorf("write %d: the turn is %+v", n, turn)
			}
			if again, err := end(t, x, map[string]string{"/again": strconv.Itoa(n)}); err != nil ||
				again.info.Result != turnstone.ResultPassed {
				t.Errorf("write %d: the next turn: %v, %+v", n, err, again)
			}
		}
		if err == nil {
			sameReceipt(t, x, r)
		}
		if err := x.host.Repo.Close(); err != nil {
			t.Error(err)
		}
		whole(t, dir)
		if !hit || t.Failed() {
			break
		}
	}
	if failed < 3/testsize.Step(2) {
		t.Errorf("%d commits failed", failed)
	}
}

// crashVar is set in the process of TestCommitCrashes that dies: "DIR N".
const crashVar = "TURN_TEST_CRASH"

// TestCommitCrashes lets the process die before each write of a commit: the turn is then complete
// or absent.
func TestCommitCrashes(t *testing.T) {
	if at := os.Getenv(crashVar); at != "" {
		var dir string
		var n int
		if _, err := fmt.Sscan(at, &dir, &n); err != nil {
			t.Fatal(err)
		}
		x := testRunner(&statedir.Dir{Root: dir})
		x.host.Repo.Fault = faultAt(n, func() error { os.Exit(77); return nil })
		if r, err := end(t, x, map[string]string{"/file": at}); err != nil ||
			r.info.Result != turnstone.ResultPassed {
			t.Fatalf("%v, %+v", err, r)
		}
		return
	}
	dir := t.TempDir()
	for n, kept := 1, 0; ; n += testsize.Step(2) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCommitCrashes$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", crashVar, dir, n))
		out, err := cmd.CombinedOutput()
		code := cmd.ProcessState.ExitCode()
		if code != 0 && code != 77 {
			t.Fatalf("%v\n%s", err, out)
		}
		if _, err := os.Stat(dir + "/context.db"); err == nil {
			if _, err := testRunner(&statedir.Dir{Root: dir}).host.Repo.Session(t.Context(),
				"s"); err == nil {
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
