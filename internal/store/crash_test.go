package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob/local"
)

// The list of chunks of TestChunks' content.
const wantList = "sha256:e739bd0799f70aaf1b9d489c865668b785abf20596d946ce1c8363be93ff9fb3"

// crashArg makes the test binary a process that dies.
const crashArg = "-crash-child"

// A crash describes the child's work: it kills itself before the nth operation that changes the
// disk.
type crash struct {
	Root string
	N    int
	Do   string // "commit" or "sweep"
	Run  int    // determines the batch's content
}

// crashChild prints "begun" after Begin, and "done" after the flush.
func crashChild(arg string) {
	var c crash
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	die(json.Unmarshal([]byte(arg), &c))
	ctx := context.Background()
	left := c.N
	fault := func(op string) error {
		if left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		left--
		return nil
	}
	blobs, err := local.Open(filepath.Join(c.Root, "blobs"), local.Options{Fault: fault})
	die(err)
	s, err := store.Open(ctx, filepath.Join(c.Root, "store"), blobs, store.Options{Fault: fault})
	die(err)
	if c.Do == "sweep" {
		_, err := s.Sweep(ctx, keepOdd)
		die(err)
	} else {
		b, err := s.Begin(ctx)
		die(err)
		for i := range 30 {
			_, err := b.Put(ctx, crashObject(c.Run, i))
			die(err)
		}
		die(b.Flush(ctx))
		die(b.Close())
	}
	fmt.Println("done")
}

func crashObject(run, i int) []byte { return text(1000+i*100, run*1000+i) }

// keepOdd keeps the objects with odd numbers of the first ten runs.
func keepOdd(_ context.Context, keep func(turnstone.Digest) bool) error {
	for run := range 10 {
		for i := 1; i < 30; i += 2 {
			keep(turnstone.DigestBytes(crashObject(run, i)))
		}
	}
	return nil
}

// runChild runs c, and reports whether it ended by itself.
func runChild(t *testing.T, c crash) bool {
	t.Helper()
	arg, err := json.Marshal(c)
	check(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], crashArg, string(arg))
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if err == nil {
		return strings.Contains(out.String(), "done")
	}
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok ||
		state.Signal() != syscall.SIGKILL {
		t.Fatalf("the child failed by itself: %v\n%s", err, errs.String())
	}
	return false
}

// TestCrashCommit kills a commit before each of its disk operations. The store is always
// consistent; a flushed batch is complete, and the existing objects of another batch are readable.
func TestCrashCommit(t *testing.T) {
	for n, done := 0, false; !done; n++ {
		root := t.TempDir()
		if !runChild(t, crash{Root: root, N: 1 << 30, Run: 0}) {
			t.Fatal("the first commit did not end")
		}
		done = runChild(t, crash{Root: root, N: n, Run: 1})
		s := open(t, root)
		fsckClean(t, s)
		for i := range 30 {
			wantObject(t, s, crashObject(0, i))
			d := turnstone.DigestBytes(crashObject(1, i))
			if ok, err := s.Has(t.Context(), d); err != nil || done && !ok {
				t.Errorf("killed at %d: after its flush an object is not there (%v)", n, err)
			} else if ok {
				wantObject(t, s, crashObject(1, i))
			}
		}
		// The next commit is not disturbed by the remains.
		if !runChild(t, crash{Root: root, N: 1 << 30, Run: 1}) {
			t.Errorf("killed at %d: the commit after it does not end", n)
		}
		for i := range 30 {
			wantObject(t, s, crashObject(1, i))
		}
		fsckClean(t, s)
		if n > 100 {
			t.Fatal("a commit does not end")
		}
	}
}

// TestCrashSweep kills a sweep before each of its disk operations: no kept object is lost, and the
// next sweep completes the work.
func TestCrashSweep(t *testing.T) {
	killed := 0
	for n, done := 0, false; !done; n++ {
		root := t.TempDir()
		s := open(t, root)
		for run := range 12 {
			b := begin(t, s)
			for i := range 30 {
				put(t, b, crashObject(run, i))
			}
			check(t, b.Flush(t.Context()))
			check(t, b.Close())
		}
		if done = runChild(t, crash{Root: root, N: n, Do: "sweep"}); !done {
			killed++
		}
		wantKept := func(s *fixture) {
			for run := range 10 {
				for i := 1; i < 30; i += 2 {
					wantObject(t, s, crashObject(run, i))
				}
			}
		}
		wantKept(s) // a store that was open all the time
		fsckClean(t, open(t, root))
		_, err := s.Sweep(t.Context(), keepOdd)
		check(t, err)
		wantKept(s)
		wantKept(open(t, root))
		fsckClean(t, s)
		u, err := s.Usage(t.Context())
		check(t, err)
		if u.Objects != 150 {
			t.Errorf("killed at %d: %d objects are there after the next sweep, want 150", n,
				u.Objects)
		}
		if n > 200 {
			t.Fatal("a sweep does not end")
		}
	}
	if killed < 10 {
		t.Errorf("the sweep was killed %d times only", killed)
	}
}
