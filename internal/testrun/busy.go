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
	"strconv"
	"strings"
	"sync"
)

// loops is how many processors' worth of work runs beside the tests of a busy run.
const loops = 3

// tallyFile is in the checkout: a run may go on on another machine.
const tallyFile = "internal/testrun/busy.json"

// A tally counts how often units have passed on a busy machine. It is kept in a file, so that a run goes on
// where the last one was stopped.
type tally struct {
	path   string
	Passed map[string]int      // by unit, since its last failure
	Failed map[string][]string // by unit, the tests that failed
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

// note counts the end of a unit's tests, which ran so many times.
func (t *tally) note(name string, times int, failed []string) error {
	if len(failed) > 0 {
		t.Passed[name] = 0
		t.Failed[name] = append(t.Failed[name], failed...)
	} else {
		t.Passed[name] += times
	}
	text, err := json.MarshalIndent(t, "", "\t")
	if err != nil {
		return err
	}
	tmp := t.path + ".new"
	if err := errors.Join(os.MkdirAll(filepath.Dir(t.path), 0o755), os.WriteFile(tmp, append(text, '\n'), 0o644)); err != nil {
		return err
	}
	return os.Rename(tmp, t.path)
}

// missing returns the units that have passed less often than n times.
func (t *tally) missing(units []unit, n int) []unit {
	return slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return t.Passed[u.String()] >= n })
}

// A unit is what a busy run counts: a package, or some of its tests.
type unit struct{ pkg, tests string }

func (u unit) String() string { return strings.TrimSpace(u.pkg + " " + u.tests) }

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

// busyMachine makes the machine busy until quiet is called, and returns what has passed so.
func (s *settings) busyMachine() (t *tally, quiet func(), err error) {
	if t, err = openTally(filepath.Join(s.root, tallyFile)); err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "turn-busy-*")
	if err != nil {
		return nil, nil, err
	}
	stop := s.occupy(dir)
	return t, func() { stop(); _ = os.RemoveAll(dir) }, nil
}

// whole runs the parts of a target once on a busy machine, and counts that as one more time of the target. Of the
// target that runs each test once, it counts the packages, too.
func (s *settings) whole(ctx context.Context, r *runner, target string, parts []part) (bool, error) {
	t, quiet, err := s.busyMachine()
	if err != nil {
		return false, err
	}
	defer quiet()
	var mu sync.Mutex
	failed := map[string][]string{} // by package
	for i := range parts {
		p := &parts[i]
		p.inputs = nil
		if !p.tests {
			continue
		}
		p.argv = slices.Insert(p.argv, 2, "-count=1")
		p.ended = func(name string, tests []string) error {
			mu.Lock()
			defer mu.Unlock()
			failed[name] = append(failed[name], tests...)
			return nil
		}
	}
	passed := r.run(ctx, atOnce, parts)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		all = append(all, failed[name]...)
		if target != "test" || s.graph[name] == nil { // some tests of a package, or another module
			continue
		}
		if err := t.note(name, 1, failed[name]); err != nil {
			return false, err
		}
	}
	if !passed && len(all) == 0 {
		all = []string{"a part that is no go test"}
	}
	return passed, t.note("the whole of "+target, 1, all)
}

// busy runs tests until each unit has passed n times on a busy machine, and reports whether all have.
func (s *settings) busy(ctx context.Context, r *runner, units []unit, n int) (bool, error) {
	t, quiet, err := s.busyMachine()
	if err != nil {
		return false, err
	}
	defer quiet()
	failed := map[string]bool{}
	for ctx.Err() == nil {
		left := slices.DeleteFunc(t.missing(units, n), func(u unit) bool { return failed[u.String()] })
		if len(left) == 0 {
			break
		}
		r.print(fmt.Sprintf("== busy: %d of %d have passed less than %d times", len(left), len(units), n))
		var mu sync.Mutex
		missing := func(u unit) int { return n - t.Passed[u.String()] }
		r.run(ctx, 1, s.rounds(left, missing, func(name string, times int, tests []string) error {
			if ctx.Err() != nil { // stopped in the middle
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			failed[name] = failed[name] || len(tests) > 0
			return t.note(name, times, tests)
		})...)
	}
	r.print(t.report(units, n))
	return len(t.missing(units, n)) == 0, ctx.Err()
}

// units returns those that are named: packages, or "known" for the tests that have failed on a busy machine; without
// a name, all.
func (s *settings) units(names []string) (all []unit) {
	if len(names) == 0 {
		names = append([]string{"known"}, append(s.tested(), s.kubernetes()...)...)
	}
	for _, n := range names {
		if n == "known" {
			all = append(all, known()...)
		} else {
			all = append(all, unit{pkg: n})
		}
	}
	return all
}

// batch is how often a part runs the tests of a package that is not among the longest ones, because linking
// them takes longer than most of them.
const batch = 5

// rounds are the lists in which each unit runs as often as is missing: those that are some tests of a package, the
// longest packages, and the others. A part of the longest runs each once, so that little is lost by a stop.
func (s *settings) rounds(units []unit, missing func(unit) int, ended func(name string, times int, failed []string) error) [][]part {
	var some []part
	var long, others []unit
	for _, u := range units {
		switch {
		case u.tests != "":
			k := missing(u)
			p := s.goTest("busy "+u.pkg, []string{u.pkg}, "-count="+strconv.Itoa(k), "-run", u.tests, "-timeout=3h")
			p.ended = func(_ string, failed []string) error { return ended(u.String(), k, failed) }
			some = append(some, p)
		case slices.Contains(longest, u.pkg) || kube(u.pkg):
			long = append(long, u)
		default:
			others = append(others, u)
		}
	}
	repeated := func(name string, units []unit, times int) (parts []part) {
		for done := 0; ; done += times {
			var packages []string
			for _, u := range units {
				if missing(u) > done {
					packages = append(packages, u.pkg)
				}
			}
			if len(packages) == 0 {
				return parts
			}
			p := s.goTest(name, packages, "-count="+strconv.Itoa(times), "-p", "2", "-timeout=3h")
			p.env = append(p.env, "TURN_TEST_BROWSER=1")
			p.ended = func(name string, failed []string) error { return ended(name, times, failed) }
			parts = append(parts, p)
		}
	}
	return [][]part{some, repeated("busy, long", long, 1), repeated("busy packages", others, batch)}
}

func (t *tally) report(units []unit, n int) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(t.Failed)) {
		fmt.Fprintf(&text, "%s failed: %s; it has passed %d times since\n", name, strings.Join(t.Failed[name], ", "), t.Passed[name])
	}
	fmt.Fprintf(&text, "%d of %d have passed %d times on a busy machine (%s)\n", len(units)-len(t.missing(units, n)), len(units), n,
		t.path)
	return text.String()
}
