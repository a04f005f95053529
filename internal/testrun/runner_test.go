package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func newRunner(t *testing.T) (*runner, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	return &runner{root: t.TempDir(), stamps: t.TempDir(), out: &out}, &out
}

// TestRun: a failed part does not stop the parts after it, the run fails, and the end says what each took.
func TestRun(t *testing.T) {
	r, out := newRunner(t)
	passed := r.run(t.Context(), 1,
		[]part{{name: "bad", argv: []string{"sh", "-c", "echo oh; exit 3"}}, {name: "after", argv: []string{"sh", "-c", "echo went on"}}},
		[]part{{name: "beside", argv: []string{"true"}}})
	text := out.String()
	for _, want := range []string{"oh\n", "went on\n", "bad", "FAILED: bad: exit status 3", "after", "beside", "slowest tests"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if passed {
		t.Error("a run with a failed part has passed")
	}
}

// TestAtOnce: two parts of a list run at a time, and the third follows the first that ends.
func TestAtOnce(t *testing.T) {
	r, out := newRunner(t)
	awaits := func(own, other string) []string {
		return []string{"sh", "-c", "touch " + own + "; until [ -e " + other + " ]; do sleep 0.01; done"}
	}
	if !r.run(t.Context(), 2, []part{{name: "a", argv: awaits("a", "c")}, {name: "b", argv: awaits("b", "a")}, {name: "c", argv: awaits("c", "b")}}) {
		t.Error(out)
	}
}

// TestInterrupted: the processes of a part end with the run, and no other part begins.
func TestInterrupted(t *testing.T) {
	r, _ := newRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := filepath.Join(r.root, "begun"), filepath.Join(r.root, "ended")
	go func() {
		for {
			if _, err := os.Stat(begun); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	script := "trap 'touch " + ended + "; exit 1' INT; touch " + begun + "; while :; do sleep 0.1; done"
	if r.run(ctx, 1, []part{{name: "long", argv: []string{"bash", "-c", script}}, {name: "never", argv: []string{"touch", filepath.Join(r.root, "never")}}}) {
		t.Error("an interrupted run has passed")
	}
	if _, err := os.Stat(ended); err != nil {
		t.Error("the process was not interrupted:", err)
	}
	if _, err := os.Stat(filepath.Join(r.root, "never")); err == nil {
		t.Error("a part began after the interruption")
	}
}

// TestUnchanged: a part with inputs runs again when one of them has changed, or when it has failed.
func TestUnchanged(t *testing.T) {
	r, _ := newRunner(t)
	log := filepath.Join(t.TempDir(), "log")
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(r.root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := 0
	run := func(what string, env []string, want bool) {
		t.Helper()
		p := part{name: "p", argv: []string{"sh", "-c", "echo . >>" + log + "; [ ! -e " + r.root + "/in/bad ]"}, env: env,
			inputs: []string{"in", "alone", "missing"}}
		res := p.run(t.Context(), r)
		if want {
			runs++
		}
		text, err := os.ReadFile(log)
		if err != nil || strings.Count(string(text), ".") != runs || res.cached == want {
			t.Errorf("%s: it ran %d times, want %d; %+v", what, strings.Count(string(text), "."), runs, res)
		}
	}
	write("in/a", "1")
	write("alone", "1")
	run("first", nil, true)
	run("again", nil, false)
	write("in/node_modules/x", "installed")
	run("what was installed", nil, false)
	write("in/a", "2")
	run("a file of a folder", nil, true)
	write("alone", "2")
	run("a file", nil, true)
	run("a variable", []string{"A=1"}, true)
	write("in/bad", "")
	run("a failure", []string{"A=1"}, true)
	run("after a failure", []string{"A=1"}, true)
}

// TestTally: a count survives the process, a failure begins anew, and what has passed often enough is not missing.
func TestTally(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "busy.json")
	tl, err := openTally(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := tl.note("a", 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := tl.note("b", 1, nil); err != nil {
		t.Fatal(err)
	}
	if tl, err = openTally(path); err != nil {
		t.Fatal(err)
	}
	if got := tl.missing([]unit{{pkg: "a"}, {pkg: "b"}, {pkg: "c"}}, 2); !slices.Equal(got, []unit{{pkg: "b"}, {pkg: "c"}}) {
		t.Errorf("missing %q", got)
	}
	if err := tl.note("a", 1, []string{"TestX"}); err != nil {
		t.Fatal(err)
	}
	if tl.Passed["a"] != 0 || !slices.Equal(tl.Failed["a"], []string{"TestX"}) {
		t.Errorf("after a failure: %+v", tl)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openTally(path); err == nil {
		t.Error("a damaged file is taken as empty")
	}
}

// TestWhole: a target that ran on a busy machine counts once, and so does each of its packages; with a failure it
// begins anew, and its results are never old ones.
func TestWhole(t *testing.T) {
	r, out := newRunner(t)
	busy, quiet := 0, 0
	s := &settings{root: t.TempDir(), graph: graph{"good": {}, "wire": {}},
		occupy: func(string) func() { busy++; return func() { quiet++ } }}
	fake := filepath.Join(s.root, "fake")
	if err := os.WriteFile(fake, []byte(`[ "$1" = -count=1 ] || exit 9
event() { printf '{"Action":"%s","Package":"turnstone.dev/turnstone/%s","Test":"%s"}\n' "$@"; }
event pass good TestA; event pass good
event pass shim/spec
event "$2" wire TestB; event "$2" wire; [ $2 = pass ]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, end := range []string{"pass", "pass", "fail"} {
		parts := []part{{name: "tests", argv: []string{"sh", fake, end}, tests: true},
			{name: "other", argv: []string{"true"}, inputs: []string{"fake"}}}
		passed, err := s.whole(t.Context(), r, "test", parts)
		if err != nil || passed != (end == "pass") {
			t.Fatalf("%d: %v %v\n%s", n, passed, err, out)
		}
	}
	tl, err := openTally(filepath.Join(s.root, tallyFile))
	if err != nil {
		t.Fatal(err)
	}
	if busy != 3 || quiet != busy {
		t.Errorf("the machine was made busy %d times, and quiet %d times", busy, quiet)
	}
	if want := map[string]int{"good": 3, "wire": 0, "the whole of test": 0}; !maps.Equal(tl.Passed, want) {
		t.Errorf("passed %v", tl.Passed)
	}
	if !slices.Equal(tl.Failed["wire"], []string{"TestB"}) || !slices.Equal(tl.Failed["the whole of test"], []string{"TestB"}) {
		t.Errorf("failed %v", tl.Failed)
	}
}

// TestRounds: each unit runs as often as is missing, the longest a part at a time, and what is complete does not run.
func TestRounds(t *testing.T) {
	missing := map[string]int{"cmd/turn": 2, "internal/store": 1, "wire": 7, "proof": 3, "sandboxes": 0, "wire ^TestX$": 4}
	var units []unit
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		pkg, tests, _ := strings.Cut(name, " ")
		units = append(units, unit{pkg, tests})
	}
	s := &settings{goTool: "go"}
	lanes := s.rounds(units, func(u unit) int { return missing[u.String()] }, nil)
	var got []string
	for _, p := range slices.Concat(lanes...) {
		var says []string
		for _, a := range p.argv {
			if strings.HasPrefix(a, "-count") || strings.HasPrefix(a, "./") {
				says = append(says, strings.TrimPrefix(a, "-count="))
			}
		}
		got = append(got, strings.Join(says, " "))
	}
	want := []string{"4 ./wire", "1 ./cmd/turn ./internal/store", "1 ./cmd/turn", "5 ./proof ./wire", "5 ./wire"}
	if !slices.Equal(got, want) {
		t.Errorf("parts %q, want %q", got, want)
	}
}
