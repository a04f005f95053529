package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/hostkeys"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
)

// crashVariable makes this program one that runs a turn and dies.
const crashVariable = "TURN_TEST_CHECKPOINT"

// A crash is a turn whose process dies before the nth operation of its second checkpoint that
// changes the disk.
type crash struct {
	Home string
	N    int
}

// crashed is the document of the turn. Each step adds a line to a file: a step that ran twice, or
// whose work was lost, shows.
const crashed = "# A qzmarker\n\n```bash\nmkdir qzmarker; cd qzmarker; export N=1; echo 1 >> f\n```\n\n" +
	"```bash\necho $((++N)) >> f; export N; head -c 300000 /dev/zero | tr '\\0' q\n```\n\n" +
	"```bash\necho $((++N)) >> f; cat f\n```\n"

// crashChild runs the turn, and kills itself.
func crashChild(arg string) error {
	var c crash
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return err
	}
	x, _ := crashEngine(c.Home)
	collected, left, ended := 0, c.N, false
	x.Repo.Fault = func(op string) error {
		if op == "checkpoint.collect" {
			collected++
		}
		if collected < 2 || ended {
			return nil
		}
		if left == 0 {
			fmt.Println("killed before", op)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		left--
		ended = op == "checkpoint.done"
		return nil
	}
	doc, err := document.Parse("crash.md", []byte(crashed))
	if err != nil {
		return err
	}
	rep, err := x.Run(context.Background(), plan.Request{Document: doc, Session: "crash",
		Checkpoint: turnstone.CheckpointStep}, nil)
	if err == nil && rep.Result != turnstone.ResultPassed {
		err = fmt.Errorf("%s: %s", rep.Result, rep.Error)
	}
	return err
}

// crashHome returns an empty state directory with what the tests' home shares.
func crashHome(t *testing.T) string {
	shared, dir := turntest.Home(t).Root, t.TempDir()
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		if err := os.MkdirAll(filepath.Join(shared, part), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(shared, part), filepath.Join(dir, part)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// crashEngine returns an executor with the keys that the state directory's settings ask for.
func crashEngine(home string) (x *Engine, closeKeys func()) {
	dir := &statedir.Dir{Root: home}
	keys := hostkeys.New(dir, nil, "")
	x = testEngine(dir)
	x.Repo.Keys = keys
	return x, keys.Close
}

// TestCheckpointCrash kills the process of a turn before each operation of a checkpoint that changes
// the disk. The turn is then resumed after the first or the second step, never before, and its
// result is that of a turn that was not killed.
func TestCheckpointCrash(t *testing.T) { checkpointCrash(t, "") }

// TestSealedCheckpointCrash is TestCheckpointCrash in a sealed session, of which nothing is in the
// clear after the kill, and gc removes nothing that the resumption needs.
func TestSealedCheckpointCrash(t *testing.T) {
	checkpointCrash(t, "[keys]\nseal = \"session\"\n")
}

func checkpointCrash(t *testing.T, config string) {
	after := map[int]int{}
	for n, done := 0, false; !done; n += testsize.Step(3) {
		if n > 100 {
			t.Fatal("a checkpoint does not end")
		}
		home := crashHome(t)
		if config != "" {
			forgetMemory(t, home)
			if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		arg := ok[[]byte](t)(json.Marshal(crash{home, n}))
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), crashVariable+"="+string(arg))
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if done = err == nil; !done && status.Signal() != syscall.SIGKILL {
			t.Fatalf("the child failed by itself: %v\n%s", err, errs.String())
		}
		x, closeKeys := crashEngine(home)
		if config != "" {
			nothingInClear(t, home, out.String())
		}
		if !done {
			ok[*turnstone.GCReport](t)(x.Repo.GC(t.Context(), turnstone.GCRequest{}))
			_, err := x.ResumeTurn(t.Context(), ResumeTurnRequest{Ref: "crash@1",
				MostTime: time.Second}, nil)
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Fatalf("%s: resumed for longer than its caller may: %v", out.String(), err)
			}
			rep, err := x.ResumeTurn(t.Context(), ResumeTurnRequest{Ref: "crash@1"}, nil)
			if err != nil || rep.Result != turnstone.ResultPassed || len(rep.Resumed) != 1 {
				t.Fatalf("%s: %+v, %v", out.String(), rep, err)
			}
			after[rep.Resumed[0].After]++
			if got := rep.Steps[2].Stdout; got != "1\n2\n3\n" {
				t.Errorf("%s: the steps left %q", out.String(), got)
			}
		}
		checkCrashed(t, x, strings.TrimSpace(out.String()))
		if config != "" {
			nothingInClear(t, home, out.String())
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		closeKeys()
	}
	if after[1] < 3/testsize.Step(3) || after[2] < 1/testsize.Step(3) {
		t.Errorf("turns were resumed after steps %v", after)
	}
	t.Logf("resumed after steps %v", after)
}

// checkCrashed checks the turn of a session that was resumed, or not killed.
func checkCrashed(t *testing.T, x *Engine, what string) {
	t.Helper()
	info := ok[*turnstone.TurnInfo](t)(x.Repo.Show(t.Context(), "crash@1"))
	switch {
	case info.Record == nil || info.State == nil || info.Checkpoint != nil ||
		info.Turn.Result != turnstone.ResultPassed || len(info.Heads) != 1:
		t.Errorf("%s: %+v", what, info)
	case len(info.Record.Steps) != 3 || info.Record.Steps[1].Stdout == nil ||
		info.Record.Steps[1].Stdout.Size != 300_000:
		t.Errorf("%s: the steps are %+v", what, info.Record.Steps)
	}
	rep := ok[*turnstone.FsckReport](t)(x.Repo.Fsck(t.Context()))
	if len(rep.Problems) > 0 {
		t.Errorf("%s: %+v", what, rep.Problems)
	}
	if _, err := x.Repo.GC(t.Context(), turnstone.GCRequest{}); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, left := range []string{"leases/t_*", "sandboxes/sb_*"} {
		if all, _ := filepath.Glob(x.Dir.Path(left)); len(all) > 0 {
			t.Errorf("%s: left behind: %q", what, all)
		}
	}
}

// forgetMemory removes at the end of the test what a state directory has in memory.
func forgetMemory(t *testing.T, home string) {
	t.Cleanup(func() {
		if err := (&statedir.Dir{Root: home}).ForgetMemory(); err != nil {
			t.Error(err)
		}
	})
}

// nothingInClear checks that no file of a state directory has what the crashed turn wrote.
func nothingInClear(t *testing.T, home, what string) {
	t.Helper()
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // what the tests share is linked
			return err
		}
		b, err := os.ReadFile(path)
		for _, text := range []string{"qzmarker", "qqqqqqqq"} {
			if strings.Contains(path, text) || bytes.Contains(b, []byte(text)) {
				t.Errorf("%s: %s has %s in the clear", what, path, text)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
