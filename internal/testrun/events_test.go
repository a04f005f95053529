package main

import (
	"slices"
	"strings"
	"testing"
)

// read gives events to a suite, and returns it with what it has printed.
func read(t *testing.T, events string) (*suite, string) {
	t.Helper()
	var out strings.Builder
	s := newSuite(func(text string) { out.WriteString(text) })
	if err := s.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	return s, out.String()
}

func TestPassedPackage(t *testing.T) {
	s, out := read(t, `
{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestX"}
{"Action":"output","Package":"m/a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"run","Package":"m/a","Test":"TestX/one"}
{"Action":"output","Package":"m/a","Test":"TestX/one","Output":"    x_test.go:1: a log\n"}
{"Action":"pass","Package":"m/a","Test":"TestX/one","Elapsed":1.5}
{"Action":"run","Package":"m/a","Test":"TestX/two"}
{"Action":"skip","Package":"m/a","Test":"TestX/two","Elapsed":0}
{"Action":"pass","Package":"m/a","Test":"TestX","Elapsed":1.6}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t1.7s\n"}
{"Action":"pass","Package":"m/a","Elapsed":1.7}
`)
	if strings.TrimSpace(out) != "ok  \tm/a\t1.7s" {
		t.Errorf("it prints %q", out)
	}
	if s.passed != 1 || s.skipped != 1 || s.failed != 0 || s.packages != 1 || s.cached != 0 {
		t.Errorf("%d passed, %d skipped, %d failed, %d packages, %d cached", s.passed, s.skipped, s.failed, s.packages, s.cached)
	}
	if len(s.timings) != 1 || s.timings[0].test != "TestX/one" {
		t.Errorf("the timings are %v: a test with subtests has none", s.timings)
	}
}

func TestCachedPackage(t *testing.T) {
	s, out := read(t, `{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t(cached)\n"}
{"Action":"pass","Package":"m/a","Elapsed":0}
`)
	if s.cached != 1 || out != "ok  \tm/a\t(cached)\n" {
		t.Errorf("%d cached, %q", s.cached, out)
	}
}

// TestFailedPackage: the output of what failed is printed whole, that of what passed is not, and two packages do
// not mix.
func TestFailedPackage(t *testing.T) {
	var ended []string
	var out strings.Builder
	s := newSuite(func(text string) { out.WriteString(text) })
	s.ended = func(pkg string, failed []string) error {
		ended = append(ended, pkg+" "+strings.Join(failed, ","))
		return nil
	}
	err := s.read(strings.NewReader(`{"Action":"run","Package":"m/a","Test":"TestX"}
{"Action":"run","Package":"m/b","Test":"TestY"}
{"Action":"output","Package":"m/a","Test":"TestX","Output":"    x_test.go:1: wrong\n"}
{"Action":"output","Package":"m/b","Test":"TestY","Output":"    y_test.go:1: fine\n"}
{"Action":"pass","Package":"m/b","Test":"TestY","Elapsed":0.1}
{"Action":"output","Package":"m/b","Output":"ok  \tm/b\t0.1s\n"}
{"Action":"pass","Package":"m/b","Elapsed":0.1}
{"Action":"output","Package":"m/a","Test":"TestX","Output":"--- FAIL: TestX (0.10s)\n"}
{"Action":"fail","Package":"m/a","Test":"TestX","Elapsed":0.1}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.2s\n"}
{"Action":"fail","Package":"m/a","Elapsed":0.2}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := "ok  \tm/b\t0.1s\n    x_test.go:1: wrong\n--- FAIL: TestX (0.10s)\nFAIL\nFAIL\tm/a\t0.2s\n"
	if out.String() != want {
		t.Errorf("it prints %q, want %q", out.String(), want)
	}
	if s.failed != 1 || !slices.Equal(ended, []string{"m/b ", "m/a TestX"}) {
		t.Errorf("%d failed, %q", s.failed, ended)
	}
}

// TestBrokenPackage: a package that does not compile, and one whose program ends in the middle, count as failed,
// and what the compiler and the program said is printed.
func TestBrokenPackage(t *testing.T) {
	s, out := read(t, `{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1: syntax error\n"}
{"ImportPath":"m/a","Action":"build-fail"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}
{"Action":"fail","Package":"m/a","Elapsed":0,"FailedBuild":"m/a"}
{"Action":"run","Package":"m/b","Test":"TestY"}
{"Action":"output","Package":"m/b","Test":"TestY","Output":"panic: oh\n"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t0.2s\n"}
{"Action":"fail","Package":"m/b","Elapsed":0.2}
go: a line that is no event
`)
	want := "a.go:1: syntax error\nFAIL\tm/a [build failed]\npanic: oh\nFAIL\tm/b\t0.2s\ngo: a line that is no event\n"
	if s.failed != 2 || out != want {
		t.Errorf("%d failed, it prints %q, want %q", s.failed, out, want)
	}
}

// TestProgress: while several packages run, their names are told; of one, its tests.
func TestProgress(t *testing.T) {
	s, _ := read(t, `{"Action":"run","Package":"turnstone.dev/turnstone/internal/a","Test":"TestX"}
{"Action":"run","Package":"turnstone.dev/turnstone/internal/a","Test":"TestX/one"}
{"Action":"run","Package":"turnstone.dev/turnstone/internal/a","Test":"TestX/two"}
{"Action":"pause","Package":"turnstone.dev/turnstone/internal/a","Test":"TestX/two"}
`)
	if got := s.progress(&part{name: "scripts", alone: true}); got != "scripts 0 (TestX/one)" {
		t.Error(got)
	}
	p := &part{name: "packages", total: 7}
	if err := s.read(strings.NewReader(`{"Action":"run","Package":"turnstone.dev/turnstone/b","Test":"TestY"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	if got := s.progress(p); got != "packages 0 of 7 (internal/a, b)" {
		t.Error(got)
	}
}
