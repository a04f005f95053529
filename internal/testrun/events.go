package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// An event is a line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// A timing is how long a test took that has no subtests.
type timing struct {
	pkg, test string
	took      time.Duration
}

// A suite collects the events of one go test. It keeps the output of a test until the test has passed, and of a
// package until it has ended, so that the outputs of packages that run at the same time do not mix.
type suite struct {
	print func(text string)                       // one call for each package, with what is to be seen of it
	ended func(pkg string, failed []string) error // nil: nobody asks

	mu                      sync.Mutex
	running                 map[string]*tested // by package
	builds                  map[string]*strings.Builder
	packages                int // that have ended
	passed, failed, skipped int // tests without subtests
	cached                  int // packages
	timings                 []timing
	err                     error // of ended
}

// A tested is a package whose tests run.
type tested struct {
	began   time.Time
	outputs map[string]*strings.Builder // by test; "" for what belongs to none
	parents map[string]bool             // tests that have subtests
	open    map[string]bool             // tests that have begun and not ended
	failed  []string
}

func newSuite(print func(string)) *suite {
	return &suite{print: print, running: map[string]*tested{}, builds: map[string]*strings.Builder{}}
}

// read reads events until r ends. Lines that are no events are printed as they are: go writes some itself.
func (s *suite) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		var e event
		switch {
		case line == "":
		case line[0] != '{' || json.Unmarshal([]byte(line), &e) != nil:
			s.print(line)
		default:
			s.take(e)
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (s *suite) take(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Action {
	case "build-output":
		if s.builds[e.ImportPath] == nil {
			s.builds[e.ImportPath] = new(strings.Builder)
		}
		s.builds[e.ImportPath].WriteString(e.Output)
		return
	case "build-fail":
		if b := s.builds[e.ImportPath]; b != nil {
			s.print(b.String())
		}
		delete(s.builds, e.ImportPath)
		return
	}
	p := s.running[e.Package]
	if p == nil {
		p = &tested{began: time.Now(), outputs: map[string]*strings.Builder{}, parents: map[string]bool{},
			open: map[string]bool{}}
		s.running[e.Package] = p
	}
	switch e.Action {
	case "pause": // it waits for its turn
		delete(p.open, e.Test)
	case "cont":
		p.open[e.Test] = true
	case "run":
		p.open[e.Test] = true
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			p.parents[e.Test[:i]] = true
		}
	case "output":
		if p.outputs[e.Test] == nil {
			p.outputs[e.Test] = new(strings.Builder)
		}
		p.outputs[e.Test].WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.end(e, p)
		} else {
			s.endTest(e, p)
		}
	}
}

func (s *suite) endTest(e event, p *tested) {
	delete(p.open, e.Test)
	leaf := !p.parents[e.Test]
	switch e.Action {
	case "pass":
		delete(p.outputs, e.Test)
	case "skip":
		delete(p.outputs, e.Test)
	}
	if !leaf {
		return
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		p.failed = append(p.failed, e.Test)
	case "skip":
		s.skipped++
		return
	}
	s.timings = append(s.timings, timing{e.Package, e.Test, time.Duration(e.Elapsed * float64(time.Second))})
}

// end prints what a package's tests said: the failed ones all of it, and the lines of go test itself.
func (s *suite) end(e event, p *tested) {
	s.packages++
	delete(s.running, e.Package)
	own := ""
	if b := p.outputs[""]; b != nil {
		own = b.String()
	}
	if strings.Contains(own, "\t(cached)") {
		s.cached++
	}
	if e.Action == "fail" && len(p.failed) == 0 {
		s.failed++ // the program ended in the middle, or was not built
		p.failed = []string{"(none of its tests)"}
	}
	if s.ended != nil {
		s.err = errors.Join(s.err, s.ended(short(e.Package), p.failed))
	}
	if e.Action != "fail" {
		s.print(closing(own))
		return
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.outputs)) {
		if name != "" {
			all.WriteString(p.outputs[name].String())
		}
	}
	all.WriteString(own)
	s.print(all.String())
}

// closing returns go test's own last line about a package.
func closing(own string) string {
	lines := strings.SplitAfter(own, "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") || strings.HasPrefix(line, "\t") {
			return line
		}
	}
	return own
}

// open returns the names of packages whose tests run, and the longest-running test of each; the one that
// began first comes first.
func (s *suite) open() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(s.running), func(a, b string) int {
		return s.running[a].began.Compare(s.running[b].began)
	}) {
		names = append(names, short(name))
	}
	return names
}

// openTests returns the names of the open tests without open subtests of all packages.
func (s *suite) openTests() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.running {
		for name := range p.open {
			if !p.parents[name] {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}
