package corpus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
)

func groups(t *testing.T) []Group {
	t.Helper()
	all, err := Groups()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGroups(t *testing.T) {
	names := map[string]bool{}
	for _, g := range groups(t) {
		for _, p := range g.Programs {
			if names[p.Name] {
				t.Errorf("two programs are called %s", p.Name)
			}
			names[p.Name] = true
		}
		doc, err := document.Parse(g.Name, g.Source)
		if err != nil || !doc.Front.Deterministic {
			t.Errorf("group %s is not deterministic: %v", g.Name, err)
		}
		for _, tier := range append(turnstone.Tiers(), "") {
			doc, err := document.Parse(g.Name, g.Document(tier))
			if err != nil {
				t.Fatal(err)
			}
			if len(doc.Steps) != len(g.Programs) || doc.Front.Deterministic != (tier != "") {
				t.Errorf("group %s has another document under the tier %q", g.Name, tier)
			}
			if err := executor.CheckScripts(t.Context(), doc); err != nil {
				t.Error(err)
			}
			n := 0
			for _, part := range g.Apart(tier) {
				n += len(part.Programs)
			}
			if n != len(g.Programs) {
				t.Errorf("the parts of group %s have %d programs", g.Name, n)
			}
		}
	}
	if len(names) < 60 {
		t.Errorf("the corpus has %d programs", len(names))
	}
	for tier, expected := range expected {
		for name := range expected {
			if !names[name] {
				t.Errorf("a difference under %s is expected of %s, which does not exist", tier, name)
			}
		}
		if limit := len(names) / 10; len(expected) > limit {
			t.Errorf("%d programs may differ under %s, more than %d", len(expected), tier, limit)
		}
	}
	if n := len(expected[turnstone.TierStrict]); n != 0 {
		t.Errorf("%d programs may differ under the strict tier", n)
	}
}

func TestSteps(t *testing.T) {
	zero, one := 0, 1
	step := func(change func(*turnstone.StepReport)) *turnstone.TurnReport {
		s := turnstone.StepReport{Name: "p", Status: turnstone.StepPassed, ExitCode: &zero,
			Stdout: "a\nb\n", StdoutInfo: turnstone.OutputInfo{Digest: "1"}}
		change(&s)
		return &turnstone.TurnReport{Steps: []turnstone.StepReport{s}}
	}
	same := step(func(*turnstone.StepReport) {})
	for what, other := range map[string]*turnstone.TurnReport{
		"status":    step(func(s *turnstone.StepReport) { s.Status = turnstone.StepFailed }),
		"exit code": step(func(s *turnstone.StepReport) { s.ExitCode = &one }),
		"stdout": step(func(s *turnstone.StepReport) {
			s.Stdout, s.StdoutInfo.Digest = "a\nc\n", "2"
		}),
		"stderr": step(func(s *turnstone.StepReport) { s.StderrInfo.Digest = "2" }),
	} {
		if got := steps(same, other); len(got) != 1 || got[0].What != what || got[0].Program != "p" {
			t.Errorf("%s: %v", what, got)
		} else if what == "stdout" && (got[0].A != "b" || got[0].B != "c") {
			t.Errorf("the first different line is %v", got[0])
		}
	}
	if got := steps(same, same); got != nil {
		t.Errorf("equal runs differ: %v", got)
	}
}

// lacking returns why a substrate cannot run on this host: another processor, or a program that is
// not installed. A program of another version, or one that fails, is an error.
func lacking(name string) string {
	program := os.Getenv("TURN_RUNSC")
	if program == "" {
		program = "runsc"
	}
	if name == driver.QEMU {
		program = "qemu-system-x86_64"
	}
	if _, err := exec.LookPath(program); runtime.GOARCH != "amd64" || err != nil {
		return fmt.Sprintf("%s on %s: %v", name, runtime.GOARCH, err)
	}
	return ""
}

// newRunner returns a runner in the home that tests share, or skips the test if this host lacks
// what tier's substrate needs.
func newRunner(t *testing.T, tier turnstone.Tier) *Runner {
	t.Helper()
	h := turntest.Home(t)
	name := driver.GVisor
	if tier == turnstone.TierStrict {
		name = driver.QEMU
	}
	c := &driver.Chooser{Home: h}
	if _, err := c.Choose(t.Context(), name, driver.Needs{}); err != nil {
		if why := lacking(name); why != "" {
			t.Skip(why)
		}
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	x, err := executor.Open(t.Context(), executor.Options{Dir: h.Root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	r, err := NewRunner(t.Context(), x, t.TempDir(), func(what string) { t.Log(what) })
	if err == nil {
		err = r.BuildTemplate(t.Context())
	}
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	return r
}

func (r *Runner) run(t *testing.T, g Group, tier turnstone.Tier) *turnstone.TurnReport {
	t.Helper()
	return r.together(t, g, tier, 1)[0]
}

// together runs g n times at once.
func (r *Runner) together(t *testing.T, g Group, tier turnstone.Tier,
	n int) []*turnstone.TurnReport {
	t.Helper()
	began := time.Now()
	turns, errs := make([]*turnstone.TurnReport, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { turns[i], errs[i] = r.Run(t.Context(), g, tier) })
	}
	wg.Wait()
	t.Cleanup(func() {
		if err := r.Forget(context.WithoutCancel(t.Context()), turns...); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Logf("group %s, %q, %d at once: %d ms", g.Name, tier, n, time.Since(began).Milliseconds())
	return turns
}

func (r *Runner) compare(t *testing.T, a, b *turnstone.TurnReport) []Difference {
	t.Helper()
	all, err := r.Compare(t.Context(), a, b)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestMachineCorpusOrdinary checks that most programs differ between two ordinary turns: they read
// values that a deterministic turn has to pin.
func TestMachineCorpusOrdinary(t *testing.T) {
	r := newRunner(t, "")
	equal, n := []string(nil), 0
	for _, g := range groups(t) {
		if !slices.Contains([]string{"archives", "go"}, g.Name) {
			continue // some are enough
		}
		differ := Programs(r.compare(t, r.run(t, g, ""), r.run(t, g, "")))
		for _, p := range g.Programs {
			if n++; !slices.Contains(differ, p.Name) {
				equal = append(equal, p.Name)
			}
		}
	}
	if len(equal)*5 > n {
		t.Errorf("%d of %d programs are equal in ordinary turns: %v", len(equal), n, equal)
	}
}

// identical runs the programs of g that must be equal three times, the last two at once, so that
// each keeps the host busy for the other.
func (r *Runner) identical(t *testing.T, g Group, tier turnstone.Tier) {
	g = g.Apart(tier)[0]
	if _, differs := Reason(tier, g.Programs[0].Name); differs {
		t.Skip("every program of the group may differ")
	}
	turns := r.together(t, g, tier, 2) // which make each other's host busy
	if testsize.Full() {
		turns = append(turns, r.run(t, g, tier))
	}
	for _, turn := range turns[1:] {
		for _, d := range r.compare(t, turns[0], turn) {
			t.Error(d)
		}
	}
}
