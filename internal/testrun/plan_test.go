package main

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// loaded is this module's graph, which go takes seconds of a processor to list.
var loaded = sync.OnceValues(func() (graph, error) { return load(context.Background(), "go", "../..") })

func newSettings(t *testing.T) *settings {
	t.Helper()
	g, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return &settings{goTool: "go", root: "../..", cpus: 2, graph: g, full: true, kernel: "/vmlinux", kvm: true, user: true}
}

// TestEachPackageOnce: every package with tests is in one part of make test; what another part runs of it, that one
// leaves out.
func TestEachPackageOnce(t *testing.T) {
	s := newSettings(t)
	times := map[string]int{}
	for _, p := range s.test([]string{"./..."}) {
		if !p.tests || slices.Contains(p.argv, "-run") {
			continue
		}
		for _, arg := range p.argv {
			if name, ok := strings.CutPrefix(arg, "./"); ok && p.dir == "" {
				times[name]++
			}
		}
	}
	for name, p := range s.graph {
		if want := map[bool]int{true: 1}[p.hasTests()]; times[name] != want {
			t.Errorf("%q is in %d parts, want %d", name, times[name], want)
		}
	}
}

// TestEachScriptOnce: every script is in one part of make test.
func TestEachScriptOnce(t *testing.T) {
	s := newSettings(t)
	var patterns []string
	for _, p := range s.test(nil) {
		if i := slices.Index(p.argv, "-run"); i >= 0 {
			patterns = append(patterns, strings.Split(p.argv[i+1], "|")...)
		}
	}
	for folder, test := range map[string]string{"machine": machineScript, "script": "TestScript"} {
		paths, err := filepath.Glob("../../cmd/turn/testdata/" + folder + "/*.txtar")
		if err != nil || len(paths) == 0 {
			t.Fatal(paths, err)
		}
		for _, path := range paths {
			name, times := strings.TrimSuffix(filepath.Base(path), ".txtar"), 0
			for _, pattern := range patterns {
				of, names, _ := strings.Cut(pattern, "/")
				if regexp.MustCompile(of).MatchString(test) && regexp.MustCompile(names).MatchString(name) {
					times++
				}
			}
			if times != 1 {
				t.Errorf("%s/%s runs %d times: %q", folder, name, times, patterns)
			}
		}
	}
}

// TestAgain: a full run has every way, and a run of a change in a package that only the command line uses has only
// what reaches it.
func TestAgain(t *testing.T) {
	s := newSettings(t)
	parts, err := s.again(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	for _, want := range []string{"race", "race of goroutines 1", "sweeps", "full cmd/turn", "full internal/bench/corpus", "soak", "kvm internal/driver/qemu", "qemu cmd/turn", "as a user", "kube-e2e"} {
		if !slices.Contains(all, want) {
			t.Errorf("a full run has no part %q: %q", want, all)
		}
	}
	others, err := s.others([]string{"internal/suggest"})
	if err != nil || len(others) > 0 {
		t.Errorf("a change that reaches no machine runs %v, %v", others, err)
	}
}
