package store_test

import (
	"bytes"
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
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/testsize"
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
	Do   string // "commit", "sweep", or "remove" the domain
	Run  int    // determines the batch's content
	Key  byte   // of the domain; 0: public
}

// domain returns the domain, nil for public objects.
func (c crash) domain() *seal.Domain {
	if c.Key == 0 {
		return nil
	}
	k, err := seal.ParseKey(bytes.Repeat([]byte{c.Key}, seal.KeySize))
	if err != nil {
		panic(err)
	}
	d, err := seal.New(k)
	if err != nil {
		panic(err)
	}
	return d
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
	s = s.In(c.domain())
	switch c.Do {
	case "sweep":
		_, err := s.In(nil).Sweep(ctx, keepOdd(s))
		die(err)
	case "remove":
		_, err := s.RemoveDomain(ctx, c.domain().ID())
		die(err)
	default:
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

// keepOdd keeps the view's objects with odd numbers of the first ten runs.
func keepOdd(s *store.Store) store.Mark {
	return func(_ context.Context, keep func(turnstone.Digest) bool) error {
		for run := range 10 {
			for i := 1; i < 30; i += 2 {
				name, err := s.Name(turnstone.DigestBytes(crashObject(run, i)))
				if err != nil {
					return err
				}
				keep(name)
			}
		}
		return nil
	}
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
	for _, key := range []byte{0, 1} {
		t.Run(crashName(key), func(t *testing.T) { crashCommit(t, key) })
	}
}

// crashName names a test in the view of a key.
func crashName(key byte) string {
	if key == 0 {
		return "public"
	}
	return "sealed"
}

func crashCommit(t *testing.T, key byte) {
	for n, done := 0, false; !done; n += testsize.Step(3) {
		root := t.TempDir()
		if !runChild(t, crash{Root: root, N: 1 << 30, Run: 0, Key: key}) {
			t.Fatal("the first commit did not end")
		}
		done = runChild(t, crash{Root: root, N: n, Run: 1, Key: key})
		s := open(t, root).in(crash{Key: key}.domain())
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
		if !runChild(t, crash{Root: root, N: 1 << 30, Run: 1, Key: key}) {
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
	for _, key := range []byte{0, 1} {
		t.Run(crashName(key), func(t *testing.T) { crashSweep(t, key) })
	}
}

func crashSweep(t *testing.T, key byte) {
	killed := 0
	view := crash{Key: key}.domain()
	for n, done := 0, false; !done; n += testsize.Step(3) {
		root := t.TempDir()
		s := open(t, root).in(view)
		for run := range 12 {
			b := begin(t, s)
			for i := range 30 {
				put(t, b, crashObject(run, i))
			}
			check(t, b.Flush(t.Context()))
			check(t, b.Close())
		}
		if done = runChild(t, crash{Root: root, N: n, Do: "sweep", Key: key}); !done {
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
		_, err := s.Sweep(t.Context(), keepOdd(s.Store))
		check(t, err)
		wantKept(s)
		wantKept(open(t, root).in(view))
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
	if killed < 10/testsize.Step(3) {
		t.Errorf("the sweep was killed %d times only", killed)
	}
}

// crashOnly is only in the domain that is removed.
var crashOnly = []byte("only there")

// TestCrashRemoveDomain kills the removal of a domain before each of its disk operations: the other
// domain and public objects are intact, what remains of the domain is complete, and the next call
// removes it.
func TestCrashRemoveDomain(t *testing.T) {
	a, b := crash{Key: 1}.domain(), crash{Key: 2}.domain()
	killed := 0
	for n, done := 0, false; !done; n += testsize.Step(3) {
		root := t.TempDir()
		s := open(t, root)
		fill(t, s.in(a), [][]byte{crashOnly}, nil)
		for run := range 3 {
			for _, d := range []*seal.Domain{nil, a, b} {
				fill(t, s.in(d), [][]byte{crashObject(run, 1), crashObject(run, 2)}, nil)
			}
		}
		check(t, os.WriteFile(filepath.Join(root, "store", "damaged"), []byte(nameIn(t, s, a)+"\n"),
			0o600))
		if done = runChild(t, crash{Root: root, N: n, Do: "remove", Key: 1}); !done {
			killed++
		}
		for _, s := range []*fixture{s, open(t, root)} {
			fsckClean(t, open(t, root).in(a))
			for run := range 3 {
				for i := 1; i < 3; i++ {
					o := crashObject(run, i)
					wantObject(t, s, o)
					wantObject(t, s.in(b), o)
				}
			}
		}
		_, err := open(t, root).RemoveDomain(t.Context(), a.ID())
		check(t, err)
		for _, s := range []*fixture{s, open(t, root)} {
			_, err := s.in(a).Get(t.Context(), turnstone.DigestBytes(crashOnly))
			wantErr(t, err, turnstone.KindNotFound)
			u, err := s.Usage(t.Context())
			check(t, err)
			if ok, err := s.HasName(t.Context(), nameIn(t, s, a)); ok || err != nil {
				t.Errorf("killed at %d: the domain has an object after the next call: %v", n, err)
			}
			if u.Objects != 12 {
				t.Errorf("killed at %d: %d objects remain, want 12", n, u.Objects)
			}
		}
		if _, err := os.Stat(filepath.Join(root, "store", "damaged")); err == nil {
			t.Errorf("killed at %d: a name of the domain is in the list of damaged objects", n)
		}
		if n > 100 {
			t.Fatal("a removal does not end")
		}
	}
	if killed < 8/testsize.Step(3) {
		t.Errorf("the removal was killed %d times only", killed)
	}
}

// nameIn returns the name of an object in a domain.
func nameIn(t *testing.T, s *fixture, d *seal.Domain) turnstone.Digest {
	t.Helper()
	name, err := s.In(d).Name(turnstone.DigestBytes(crashObject(0, 1)))
	check(t, err)
	return name
}
