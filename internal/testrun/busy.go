package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// loops is how many processors' worth of work runs beside the tests of a busy run.
const loops = 3

// A tally counts how often packages have passed on a busy machine. It is kept in a file, so that a run goes on
// where the last one was stopped.
type tally struct {
	path   string
	Passed map[string]int      // by package, since its last failure
	Failed map[string][]string // by package, the tests that failed
}

func openTally(path string) (*tally, error) {
	t := &tally{path: path, Passed: map[string]int{}, Failed: map[string][]string{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(text, t)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what passed on a busy machine: %w", err)
	}
	return t, nil
}

// note counts the end of a package's tests.
func (t *tally) note(pkg string, failed []string) error {
	if len(failed) > 0 {
		t.Passed[pkg] = 0
		t.Failed[pkg] = append(t.Failed[pkg], failed...)
	} else {
		t.Passed[pkg]++
	}
	text, err := json.MarshalIndent(t, "", "\t")
	if err != nil {
		return err
	}
	tmp := t.path + ".new"
	if err := errors.Join(os.MkdirAll(filepath.Dir(t.path), 0o700), os.WriteFile(tmp, text, 0o600)); err != nil {
		return err
	}
	return os.Rename(tmp, t.path)
}

// missing returns the packages that have passed less often than n times.
func (t *tally) missing(names []string, n int) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return t.Passed[name] >= n })
}

// makeBusy keeps the machine busy until the result is called: loops processors compute, and a file is written to the
// disk again and again.
func makeBusy(dir string) (stop func()) {
	runtime.GOMAXPROCS(runtime.NumCPU() + loops + 1)
	done := make(chan struct{})
	var all sync.WaitGroup
	for range loops {
		all.Go(func() {
			for n := 0; ; n++ {
				if n%1_000_000 == 0 {
					select {
					case <-done:
						return
					default:
					}
				}
			}
		})
	}
	all.Go(func() {
		path, block := filepath.Join(dir, "busy"), make([]byte, 32<<20)
		for {
			select {
			case <-done:
				_ = os.Remove(path)
				return
			default:
				write(path, block)
			}
		}
	})
	return func() { close(done); all.Wait() }
}

// write writes a file whole to the disk. A disk that is full is busy, too.
func write(path string, block []byte) {
	f, err := os.Create(path)
	if err != nil {
		return
	}
	_, _ = f.Write(block)
	_ = f.Sync()
	_ = f.Close()
}

// busy runs packages until each has passed n times on a busy machine, and reports whether all have.
func (s *settings) busy(ctx context.Context, r *runner, packages []string, n int) (bool, error) {
	path := filepath.Join(filepath.Dir(r.stamps), "busy.json")
	t, err := openTally(path)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "turn-busy-*")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	defer makeBusy(dir)()
	failed := map[string]bool{}
	for round := 1; ctx.Err() == nil; round++ {
		left := slices.DeleteFunc(t.missing(packages, n), func(name string) bool { return failed[name] })
		if len(left) == 0 {
			break
		}
		r.print(fmt.Sprintf("== busy, round %d: %d packages have passed less than %d times", round, len(left), n))
		p := s.goTest("busy", left, "-count=1", "-p", "2")
		p.ended = func(pkg string, tests []string) error {
			failed[pkg] = failed[pkg] || len(tests) > 0
			return t.note(pkg, tests)
		}
		r.run(ctx, [][]part{{p}})
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(t.Failed)) {
		fmt.Fprintf(&text, "%s failed: %s; it has passed %d times since\n", name, strings.Join(t.Failed[name], ", "), t.Passed[name])
	}
	fmt.Fprintf(&text, "%d of %d packages have passed %d times on a busy machine (%s)\n",
		len(packages)-len(t.missing(packages, n)), len(packages), n, path)
	r.print(text.String())
	return len(t.missing(packages, n)) == 0, ctx.Err()
}
