package repo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostkeys"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/repotest/diskcalltest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/testsize"
)

// withKeyring opens the repo of root with the keyring that is in its files.
func withKeyring(root string) (r *repo.Repo, closing func(), err error) {
	dir := &statedir.Dir{Root: root}
	if err := os.WriteFile(dir.Path("config.toml"), []byte("[keys]\nseal = \"session\"\n"),
		0o600); err != nil {
		return nil, nil, err
	}
	k := hostkeys.New(dir, nil, "")
	r = repotest.Open(dir)
	r.Keys = k
	return r, func() { _ = r.Close(); k.Close() }, nil
}

// stateOfChild names the state directory in which TestSealChild seals the session s.
const stateOfChild = "TURNSTONE_TEST_SEAL"

// TestSealChild is the process that TestSealAtEachStep stops.
func TestSealChild(t *testing.T) {
	root := os.Getenv(stateOfChild)
	if root == "" {
		t.Skip("only in a process of TestSealAtEachStep")
	}
	r, closing, err := withKeyring(root)
	if err != nil {
		t.Fatal(err)
	}
	defer closing()
	if err := diskcalltest.Confine(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Seal(t.Context(), []string{"s"}); err != nil {
		t.Fatal(err)
	}
}

const inAnOutput = "marker-in-an-output"

// TestSealAtEachStep stops a process that seals a session before each of its changes of files: it is
// killed, or the disk is full from there on. The session then reads as before, nothing is damaged,
// and after the command has been repeated nothing is in the clear.
func TestSealAtEachStep(t *testing.T) {
	if testing.Short() {
		t.Skip("several hundred conversions")
	}
	first := stateToSeal(t)
	steps := []diskcalltest.Call{}
	if err := sealStopped(t, first, func(_ int, c diskcalltest.Call) diskcalltest.Verdict {
		steps = append(steps, c)
		return diskcalltest.Continue
	}); err != nil {
		t.Fatal(err)
	}
	checkSealed(t, first)
	for _, how := range []diskcalltest.Verdict{diskcalltest.Kill, diskcalltest.Full} {
		for _, n := range worthStopping(steps, how) {
			name := fmt.Sprintf("%s before %d %s", map[diskcalltest.Verdict]string{diskcalltest.Kill: "killed",
				diskcalltest.Full: "full"}[how], n, strings.ReplaceAll(steps[n-1].Path, first, ""))
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				stopped(t, n, how)
			})
		}
	}
}

// worthStopping returns the numbers of the calls before which a process is stopped: in a full run all, except most
// of a long row of writes to one file.
func worthStopping(steps []diskcalltest.Call, how diskcalltest.Verdict) (numbers []int) {
	same := func(i, j int) bool {
		return j >= 0 && j < len(steps) && steps[i] == steps[j]
	}
	for i, c := range steps {
		if i%testsize.Step(4) != 0 {
			continue
		}
		if how == diskcalltest.Full && !c.Grows || same(i, i-2) && same(i, i-1) && same(i, i+1) {
			continue
		}
		numbers = append(numbers, i+1)
	}
	return numbers
}

// stopped stops a conversion before its n-th call and repeats it.
func stopped(t *testing.T, n int, how diskcalltest.Verdict) {
	root := stateToSeal(t)
	reached := false
	err := sealStopped(t, root, func(at int, c diskcalltest.Call) diskcalltest.Verdict {
		switch {
		case at < n:
			return diskcalltest.Continue
		case how == diskcalltest.Full && !c.Grows:
			return diskcalltest.Continue
		}
		reached = true
		return how
	})
	if how == diskcalltest.Kill && reached && err == nil {
		t.Error("a process that was killed succeeded")
	}
	r, closing, openErr := withKeyring(root)
	if openErr != nil {
		t.Fatal(openErr)
	}
	readsAsBefore(t, r)
	noProblems(t, r)
	if err == nil && reached {
		nothingInTheClear(t, root) // what failed was not needed, and the command may say so
	}
	if _, err := r.Seal(t.Context(), []string{"s"}); err != nil {
		t.Fatalf("again: %v (%s)", err, turnstone.HintOf(err))
	}
	closing()
	checkSealed(t, root)
}

// sealStopped runs TestSealChild on root.
func sealStopped(t *testing.T, root string, judge func(int, diskcalltest.Call) diskcalltest.Verdict) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, "-test.run=^TestSealChild$")
	cmd.Env = append(os.Environ(), stateOfChild+"="+root)
	out, err := diskcalltest.Run(cmd, judge)
	if err != nil {
		err = errors.Join(err, errors.New(out))
	}
	return err
}

// stateToSeal returns a state directory with two sessions that are not sealed: s has two turns, a
// folder of one that has ended, and one of a turn that was interrupted.
func stateToSeal(t *testing.T) (root string) {
	t.Helper()
	dir := &statedir.Dir{Root: t.TempDir()}
	t.Cleanup(func() {
		if memory, err := dir.Memory(); err == nil {
			_ = os.RemoveAll(memory)
		}
	})
	r := repotest.Open(dir)
	defer func() { _ = r.Close() }()
	p := repotest.On(t, r)
	s := p.Session("s")
	var ended turnstone.Turn
	for n := range 2 {
		ended = p.Turn(s, "main", files(map[string]string{"/n": strings.Repeat("n", n)})...)
	}
	p.Turn(p.Session("other"), "main",
		treetest.Texts(map[string]string{"/other": "of the other"})...)
	folder := ok[string](t)(dir.MkdirAll("turns", string(ended.ID)))
	for _, name := range []string{"receipt.md", "step-1.stdout"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(inAnOutput), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	interrupted := startTurn(t, p, s, "title-of-an-interrupted-turn")
	folder = ok[string](t)(dir.MkdirAll("turns", string(interrupted.ID)))
	if err := os.WriteFile(filepath.Join(folder, "receipt.md"), []byte(inAnOutput), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir.Root
}

// readsAsBefore checks that what the turns of both sessions left can be read.
func readsAsBefore(t *testing.T, r *repo.Repo) {
	t.Helper()
	for ref, want := range map[string]string{"s@1": "", "s@2": "n"} {
		for name, want := range map[string]string{"/n": want, "/" + marker + "-name": marker} {
			if text, err := read(t, r, ref, name); text != want || err != nil {
				t.Errorf("%s %s: %q, %v", ref, name, text, err)
			}
		}
	}
	if text, err := read(t, r, "other", "/other"); text != "of the other" {
		t.Errorf("%q, %v", text, err)
	}
	g := ok[*turnstone.Graph](t)(r.Log(t.Context(), "s", 0))
	if len(g.Turns) != 3 || g.Turns[0].Locked || !slices.ContainsFunc(g.Turns,
		func(t turnstone.Turn) bool { return t.Title == "title-of-an-interrupted-turn" }) {
		t.Errorf("%+v", g.Turns)
	}
}

func noProblems(t *testing.T, r *repo.Repo) {
	t.Helper()
	if rep := ok[*turnstone.FsckReport](t)(r.Fsck(t.Context())); len(rep.Problems) > 0 {
		t.Errorf("%+v", rep.Problems)
	}
}

func nothingInTheClear(t *testing.T, root string) {
	t.Helper()
	texts := append(shown(marker), inAnOutput, "title-of-an-interrupted-turn", marker+"-name")
	if in := found(t, root, texts...); len(in) > 0 {
		t.Errorf("in the clear: %q", in)
	}
}

// checkSealed checks a conversion that is complete.
func checkSealed(t *testing.T, root string) {
	t.Helper()
	nothingInTheClear(t, root)
	r, closing, err := withKeyring(root)
	if err != nil {
		t.Fatal(err)
	}
	defer closing()
	readsAsBefore(t, r)
	noProblems(t, r)
	g := ok[*turnstone.Graph](t)(r.Log(t.Context(), "s", 0))
	if g.Session.Domain == "" {
		t.Errorf("%+v", g.Session)
	}
	ok[*turnstone.GCReport](t)(r.GC(t.Context(), turnstone.GCRequest{Now: time.Now().Add(2 * time.Hour),
		KeepUnreachable: 24 * time.Hour}))
	left := ok[[]os.DirEntry](t)(os.ReadDir(r.Dir.Path("domains")))
	if len(left) != 2 { // the session's, and the lock
		t.Errorf("keys of unused domains are left: %v", left)
	}
	for _, one := range g.Turns {
		if one.Record == "" {
			rep, _, err := r.Ended(t.Context(), one.ID)
			if err != nil || rep.Receipt != inAnOutput {
				t.Errorf("the receipt of the interrupted turn: %+v, %v", rep, err)
			}
		}
	}
}

// TestGCDestroysUnusedKeys: gc destroys the keys of domains that no session is in, after a grace, and
// never that of a session or of a process that has not stored its session yet. fsck reports them.
func TestGCDestroysUnusedKeys(t *testing.T) {
	root := t.TempDir()
	r, closing, err := withKeyring(root)
	if err != nil {
		t.Fatal(err)
	}
	defer closing()
	t.Cleanup(func() {
		if memory, err := r.Dir.Memory(); err == nil {
			_ = os.RemoveAll(memory)
		}
	})
	ctx := t.Context()
	p := repotest.On(t, r)
	kept, removed := p.Session("kept"), p.Session("removed")
	p.Turn(kept, "main", files(nil)...)
	p.Turn(removed, "main", files(nil)...)
	ok[turnstone.Session](t)(r.RemoveSession(ctx, "removed"))
	_, pending, err := p.CS.NewDomain(ctx)
	if err != nil {
		t.Fatal(err)
	}
	gc := func(at time.Time, want ...turnstone.DomainID) {
		t.Helper()
		rep := ok[*turnstone.GCReport](t)(r.GC(ctx, turnstone.GCRequest{Now: at}))
		if !slices.Equal(rep.Domains, want) {
			t.Errorf("gc destroyed the keys of %v, want %v", rep.Domains, want)
		}
	}
	later := time.Now().Add(2 * time.Hour)
	gc(time.Now()) // they are too young
	other, closeOther, err := withKeyring(root)
	if err != nil {
		t.Fatal(err)
	}
	defer closeOther()
	if rep := ok[*turnstone.GCReport](t)(other.GC(ctx, turnstone.GCRequest{Now: later,
		DryRun: true})); !slices.Equal(rep.Domains, []turnstone.DomainID{removed.Domain}) {
		t.Errorf("a dry run: %v", rep.Domains)
	}
	gc(later, removed.Domain)
	p.CS.Settle(pending)
	gc(later, pending)
	gc(later)
	if text, err := read(t, r, "kept", "/"+marker+"-name"); text != marker {
		t.Errorf("%q, %v", text, err)
	}
	noProblems(t, r)
	record := r.Dir.Path("domains", string(kept.Domain)+".json")
	b := ok[[]byte](t)(os.ReadFile(record))
	for what, damage := range map[string]func() error{
		"is damaged":      func() error { return os.WriteFile(record, b[:20], 0o600) },
		"its key is gone": func() error { return os.Remove(record) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		rep := ok[*turnstone.FsckReport](t)(r.Fsck(ctx))
		if !slices.ContainsFunc(rep.Problems, func(p turnstone.FsckProblem) bool {
			return strings.Contains(p.Error, what)
		}) {
			t.Errorf("%s: %+v", what, rep.Problems)
		}
		gc(later)
		if err := os.WriteFile(record, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	noProblems(t, r)
}
