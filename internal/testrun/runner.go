package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// progressEvery is how often a run says how far it is.
const progressEvery = 30 * time.Second

// slowest is how many tests the end of a run lists.
const slowest = 10

// A runner runs parts, several at the same time.
type runner struct {
	root   string // of the checkout
	stamps string // folder of what passed
	out    io.Writer
	began  time.Time

	mu       sync.Mutex // of out, and of what follows
	watched  []watched
	finished int // parts
	results  []result
}

// A watched is a part whose tests run.
type watched struct {
	part  *part
	suite *suite
}

// print prints text, and ends it with a line feed.
func (r *runner) print(text string) {
	if text == "" {
		return
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = io.WriteString(r.out, text)
}

func (r *runner) watch(p *part, s *suite) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched = append(r.watched, watched{p, s})
}

// run runs the parts, so many at a time, each list in its order: a part that failed stops none. It reports whether all
// passed. Lists run beside each other.
func (r *runner) run(ctx context.Context, atOnce int, lists ...[]part) bool {
	r.began = time.Now()
	r.finished, r.results = 0, nil
	done := make(chan struct{})
	var telling, all sync.WaitGroup
	telling.Go(func() { r.tell(done, len(slices.Concat(lists...))) })
	for _, parts := range lists {
		next := make(chan *part)
		all.Go(func() {
			defer close(next)
			for i := range parts {
				next <- &parts[i]
			}
		})
		for range atOnce {
			all.Go(func() {
				for p := range next {
					if ctx.Err() == nil {
						r.end(p.run(ctx, r))
					}
				}
			})
		}
	}
	all.Wait()
	close(done)
	telling.Wait()
	r.print(r.report())
	return ctx.Err() == nil && !slices.ContainsFunc(r.results, func(res result) bool { return res.err != nil })
}

// end notes how a part ended.
func (r *runner) end(res result) {
	r.print(fmt.Sprintf("== %s  %s", r.clock(), res.line()))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, res)
	r.watched = slices.DeleteFunc(r.watched, func(w watched) bool { return w.suite == res.suite })
	r.finished++
}

// clock returns how long the run has taken, as minutes and seconds.
func (r *runner) clock() string {
	s := int(time.Since(r.began).Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// tell says from time to time how far the run is.
func (r *runner) tell(done <-chan struct{}, parts int) {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			r.print(r.progress(parts))
		}
	}
}

func (r *runner) progress(parts int) string {
	r.mu.Lock()
	now := slices.Clone(r.watched)
	text := fmt.Sprintf("== %s  %d of %d parts ended", r.clock(), r.finished, parts)
	r.mu.Unlock()
	for _, w := range now {
		text += "; " + w.suite.progress(w.part)
	}
	return text
}

// progress returns how far a go test is: "packages 120 of 250 (cmd/turn, internal/store)", or of one package
// "scripts 12 of 126 (TestMachineScript/run)".
func (s *suite) progress(p *part) string {
	s.mu.Lock()
	done, tests := s.packages, s.passed+s.failed+s.skipped
	s.mu.Unlock()
	names := s.open()
	if p.alone {
		done, names = tests, s.openTests()
	}
	text := fmt.Sprintf("%s %d", p.name, done)
	if p.total > 0 {
		text += fmt.Sprintf(" of %d", p.total)
	}
	if len(names) > 4 {
		names = append(names[:4], "…")
	}
	return text + " (" + strings.Join(names, ", ") + ")"
}

// report is the end of a run: what each part took, and which tests took longest.
func (r *runner) report() string {
	var b strings.Builder
	var passed, failed, skipped, cached int
	var timings []timing
	fmt.Fprintf(&b, "\n%-22s %8s %8s  %s\n", "part", "seconds", "CPU s", "tests")
	for _, res := range r.results {
		fmt.Fprintf(&b, "%-22s %8.0f %8.0f  %s\n", res.name, res.took.Seconds(), res.cpu.Seconds(), res.tests())
		if s := res.suite; s != nil {
			passed, failed, skipped, cached = passed+s.passed, failed+s.failed, skipped+s.skipped, cached+s.cached
			timings = append(timings, s.timings...)
		}
	}
	slices.SortStableFunc(timings, func(a, b timing) int { return -cmp.Compare(a.took, b.took) })
	fmt.Fprintf(&b, "\nslowest tests\n")
	for _, t := range timings[:min(len(timings), slowest)] {
		fmt.Fprintf(&b, "%9.1fs  %s %s\n", t.took.Seconds(), short(t.pkg), t.test)
	}
	fmt.Fprintf(&b, "\ntests: %d passed, %d failed, %d skipped; %d packages unchanged; %s\n", passed, failed, skipped,
		cached, r.clock())
	for _, res := range r.results {
		if res.err != nil {
			fmt.Fprintf(&b, "FAILED: %s: %v\n", res.name, res.err)
		}
	}
	return b.String()
}

// tests returns the counts of a result's tests, or what else there is to say of it.
func (res result) tests() string {
	s := res.suite
	switch {
	case res.cached:
		return "unchanged"
	case s == nil && res.err != nil:
		return "FAILED"
	case s == nil:
		return "passed"
	}
	text := fmt.Sprintf("%d passed", s.passed)
	if s.failed > 0 {
		text += fmt.Sprintf(", %d FAILED", s.failed)
	}
	if s.skipped > 0 {
		text += fmt.Sprintf(", %d skipped", s.skipped)
	}
	if s.cached > 0 {
		text += fmt.Sprintf(", %d of %d packages unchanged", s.cached, s.packages)
	}
	return text
}

func short(pkg string) string {
	if name := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/"); name != "" {
		return name
	}
	return "turnstone"
}
