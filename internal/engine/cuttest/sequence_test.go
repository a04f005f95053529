package cuttest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/engine/cuttest/internal/fsops"
)

// A sequence is operations in a folder of their own, cut into pieces. A piece may be empty.
type sequence [][]string

// parseSequence reads a sequence: a line for each operation, and "--" for each cut. What follows " => "
// is the right result.
func parseSequence(text string) (s sequence, want map[int]string) {
	s, want = sequence{nil}, map[int]string{}
	n := 0
	for line := range strings.Lines(text) {
		op, result, checked := strings.Cut(strings.TrimSpace(line), " => ")
		switch {
		case op == "":
			continue
		case op == "--":
			s = append(s, nil)
			continue
		case checked:
			want[n] = result
		}
		s[len(s)-1] = append(s[len(s)-1], op)
		n++
	}
	return s, want
}

func (s sequence) String() string {
	pieces := make([]string, len(s))
	for i, p := range s {
		pieces[i] = strings.Join(p, "\n")
	}
	return strings.Join(pieces, "\n--\n")
}

// ops returns the operations of all pieces.
func (s sequence) ops() []string { return slices.Concat(s...) }

// without returns s without the operations from the first to before the last.
func (s sequence) without(first, last int) sequence {
	var out sequence
	n := 0
	for _, p := range s {
		var left []string
		for _, op := range p {
			if n < first || n >= last {
				left = append(left, op)
			}
			n++
		}
		out = append(out, left)
	}
	return out
}

// joined returns s without the cut after piece i.
func (s sequence) joined(i int) sequence {
	out := slices.Clone(s[:i+1])
	out[i] = slices.Concat(s[i], s[i+1])
	return append(out, s[i+2:]...)
}

// padded returns s with n pieces, of which the last are empty.
func (s sequence) padded(n int) sequence {
	out := slices.Clone(s)
	for len(out) < n {
		out = append(out, nil)
	}
	return out
}

// What a sequence showed.
type shown struct {
	results []string
	walk    string // at its end
	again   string // in the turn after it
}

// A difference is what differs between two ways of performing a sequence.
type difference struct {
	of        int    // the sequence
	where     string // which ways
	op        string // the operation, or "walk"
	want, got string
}

// kind is the same for differences of one cause, as far as can be told.
func (d *difference) kind() string {
	name, _, _ := strings.Cut(d.op, " ")
	if f := strings.Fields(d.op); name == "as" {
		name = f[2]
	}
	result := func(s string) string {
		if isError(s) {
			return s
		}
		return "…"
	}
	return fmt.Sprintf("%s: %s: %s, not %s", d.where, name, result(d.got), result(d.want))
}

// isError reports whether a result is the name of an error number.
func isError(s string) bool { return strings.HasPrefix(s, "E") && strings.ToUpper(s) == s }

func (d *difference) String() string {
	return fmt.Sprintf("%s: %s:\ngot  %s\nwant %s", d.where, d.op, d.got, d.want)
}

// compare returns the first difference between two ways of performing s, except those that are
// allowed.
func compare(of int, where string, s sequence, want, got *shown, allowed func(*difference) bool) *difference {
	for i, op := range s.ops() {
		d := &difference{of, where, op, want.results[i], got.results[i]}
		if d.want != d.got && !allowed(d) {
			return d
		}
	}
	if w, g := unlike(want.walk, got.walk); w != g {
		return &difference{of, where, "walk", w, g}
	}
	if w, g := unlike(want.again, got.again); w != g {
		return &difference{of, where, "walk in the next turn", w, g}
	}
	return nil
}

// unlike returns the lines that are in only one text.
func unlike(a, b string) (onlyA, onlyB string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	only := func(list, other []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(list), func(line string) bool {
			return slices.Contains(other, line)
		}), "\n")
	}
	return only(x, y), only(y, x)
}

// hostDir returns a folder of the host that does not exist yet, in one that all users may enter.
func hostDir(t testing.TB) fsops.Dir {
	t.Helper()
	dir := t.TempDir()
	for _, of := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(of, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return fsops.Dir(filepath.Join(dir, "s"))
}

// onHost performs a sequence in a folder of the host.
func onHost(t testing.TB, s sequence) *shown {
	t.Helper()
	d := hostDir(t)
	defer func() { _ = os.RemoveAll(string(d)) }()
	if got := d.Do("begin"); got != "ok" {
		t.Fatal(got)
	}
	out := &shown{}
	for _, op := range s.ops() {
		out.results = append(out.results, d.Do(op))
	}
	out.walk = d.Do("walk")
	out.again = out.walk
	return out
}
