package corpus

import (
	"context"
	_ "embed"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/driver"
)

//go:embed testdata/lifecycle.md
var lifecycle []byte

// wanted are lines that the steps print, besides what has to be the same each time.
var wanted = map[string][]string{
	// The clock is where the programs that wait for ever, or often, left it.
	"far": {"2034-01-04", "longest waited  1767312000.0",
		"descriptor waited  1767657600.0", "360000000"},
	"kin":     {"executed 0", "42 stops, 1280", "outlived its tracer 0", "end 768"},
	"many":    {"end"},
	"writing": {"after"},
}

// TestDeterministicSibling runs programs whose tasks begin, stop and end in unusual ways, or wait for
// times that no clock reaches: the sandbox goes on, the same way each time.
func TestDeterministicSibling(t *testing.T) {
	r := newRunner(t, turnstone.TierSeeded)
	doc, err := document.Parse("lifecycle.md", lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	var first *turnstone.TurnReport
	for range 2 {
		turn, err := r.x.Run(t.Context(), executor.Request{Document: doc, Dir: r.dir,
			Substrate: driver.GVisor}, r)
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		t.Cleanup(func() {
			if err := r.Forget(context.WithoutCancel(t.Context()), turn); err != nil {
				t.Error(err)
			}
		})
		for _, s := range turn.Steps {
			t.Logf("%s: %s\n%s%s", s.Name, s.Note, s.Stdout, s.Stderr)
			if s.Status != turnstone.StepPassed {
				t.Errorf("step %s: %s", s.Name, s.Status)
			}
			for i, line := range wanted[s.Name] {
				if !strings.Contains(s.Stdout, line) {
					t.Errorf("step %s lacks line %d: %q", s.Name, i, line)
				}
			}
		}
		if first == nil {
			first = turn
			continue
		}
		for _, d := range r.compare(t, first, turn) {
			t.Error(d)
		}
	}
}
