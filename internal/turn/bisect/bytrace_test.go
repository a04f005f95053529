package bisect

import (
	"math"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// ran returns a command that begins at the byte from of a script, with its part of the output.
func ran(from, out, to int64) turnstone.CommandReport {
	code := 0
	return turnstone.CommandReport{Parent: -1, Span: &turnstone.Range{From: from, To: from + 1},
		Stdout: &turnstone.Range{From: out, To: to}, ExitCode: &code}
}

// TestInStep checks that two traces name the first command that differs, and none if several
// commands wrote the byte or the ranges are nonsense.
func TestInStep(t *testing.T) {
	t.Parallel()
	doc, err := document.Parse("d.md", []byte("```bash\none\ntwo\nthree\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{units: units(doc)}
	calm := []turnstone.CommandReport{ran(0, 0, 2), ran(4, 2, 4), ran(8, 4, 6)}
	failed := append([]turnstone.CommandReport{}, calm...)
	one := 1
	failed[1].ExitCode = &one
	inner := ran(8, 2, 4)
	inner.Parent = 1
	for name, c := range map[string]struct {
		was, is  string
		old, now []turnstone.CommandReport
		unit     int // -1: none
		differs  bool
		shows    string // old and new
	}{
		"the same":     {"1\n2\n3\n", "1\n2\n3\n", calm, calm, -1, false, ""},
		"an output":    {"1\n2\n3\n", "1\nX\n4\n", calm, calm, 1, true, "2\n|X\n"},
		"more at last": {"1\n2\n", "1\n2\n3\n", calm[:2], calm, 2, true, "|3\n"},
		"exit code":    {"1\n2\n3\n", "1\n2\nX\n", calm, failed, 1, true, "|"},
		"an exit code alone": {"1\n2\n3\n", "1\n2\n3\n", calm, failed, 1, false,
			"|"},
		"inside a command": {"1\n2\n3\n", "1\nX\n3\n", append(calm, inner), calm, 1, true,
			"2\n|X\n"},
		"in the background": {"1\n2\n3\n", "1\nX\n3\n", append(calm[:2:2], ran(8, 0, 9)), calm,
			-1, true, ""},
		"no commands": {"1\n", "2\n", nil, nil, -1, true, ""},
		"nonsense": {"1\n", "2\n", []turnstone.CommandReport{ran(-5, 0, 2)},
			[]turnstone.CommandReport{ran(math.MaxInt64-1, math.MinInt64, math.MaxInt64)}, -1, true,
			""},
		"long ranges": {"1\n", "2\n", []turnstone.CommandReport{ran(0, -9, math.MaxInt64)},
			[]turnstone.CommandReport{ran(0, math.MinInt64, math.MaxInt64)}, 0, true, "1\n|2\n"},
	} {
		got, differs := p.inStep(0, [2][2]string{{c.was, c.is}},
			[2][]turnstone.CommandReport{c.old, c.now})
		unit, shows := -1, ""
		if got != nil {
			unit, shows = got.unit, got.old+"|"+got.new
		}
		if unit != c.unit || differs != c.differs || shows != c.shows {
			t.Errorf("%s: command %d, %t, %q", name, unit, differs, shows)
		}
	}
}
