package merge

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testNames = names{"ours", "base", "theirs"}

// gitMergeFile returns git's merge of three texts, and whether it found conflicts.
func gitMergeFile(t testing.TB, dir string, base, ours, theirs []byte) ([]byte, bool) {
	t.Helper()
	for name, b := range map[string][]byte{"base": base, "ours": ours, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "merge-file", "-p", "--diff3", "-L", "ours", "-L", "base", "-L",
		"theirs", "ours", "base", "theirs")
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() >= 128) {
		t.Fatalf("git merge-file: %v", err)
	}
	return out, err != nil
}

// changed draws a text that is derived from lines by a few edits.
func changed(t *rapid.T, lines []string, fresh *rapid.Generator[string], label string) []string {
	out := append([]string(nil), lines...)
	for range rapid.IntRange(0, 4).Draw(t, label+"Edits") {
		at := rapid.IntRange(0, len(out)).Draw(t, label+"At")
		end := min(len(out), at+rapid.IntRange(0, 3).Draw(t, label+"Cut"))
		add := rapid.SliceOfN(fresh, 0, 3).Draw(t, label+"Add")
		out = append(append(append([]string(nil), out[:at]...), add...), out[end:]...)
	}
	return out
}

func join(lines []string, final bool) []byte {
	s := strings.Join(lines, "\n")
	if final && len(lines) > 0 {
		s += "\n"
	}
	return []byte(s)
}

// If all lines differ, there is already a unique smallest difference, so git must produce the same
// text, conflicts and markers included.
func TestTextAsGit(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 12).Draw(rt, "lines")
		var lines []string
		for i := range n {
			lines = append(lines, fmt.Sprint("line ", i))
		}
		next := 0
		fresh := rapid.Custom(func(rt *rapid.T) string {
			if rapid.IntRange(0, 3).Draw(rt, "same") == 0 {
				return fmt.Sprint("same ", rapid.IntRange(0, 2).Draw(rt, "which"))
			}
			next++
			return fmt.Sprint("new ", next)
		})
		finals := rapid.IntRange(0, 9).Draw(rt, "finals")
		base := join(lines, finals != 0)
		ours := join(changed(rt, lines, fresh, "ours"), finals != 1)
		theirs := join(changed(rt, lines, fresh, "theirs"), finals != 2)
		if bytes.Contains(ours, []byte("same")) || bytes.Contains(theirs, []byte("same")) {
			if dup(ours) || dup(theirs) {
				rt.Skip("several smallest differences")
			}
		}
		want, conflict := gitMergeFile(t, dir, base, ours, theirs)
		got, conflicts := mergeText(base, ours, theirs, testNames)
		if conflict != (conflicts > 0) || !bytes.Equal(got, want) {
			rt.Fatalf("base %q\nours %q\ntheirs %q\n got %q (%d conflicts)\nwant %q", base, ours,
				theirs, got, conflicts, want)
		}
	})
}

// dup reports whether a line is a duplicate.
func dup(b []byte) bool {
	seen := map[string]bool{}
	for _, l := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		if seen[l] {
			return true
		}
		seen[l] = true
	}
	return false
}

// With repeated lines, a merge can be aligned in several ways; these properties must hold.
func TestTextLaws(t *testing.T) {
	line := rapid.SampledFrom([]string{"a", "b", "c", "", "}"})
	rapid.Check(t, func(rt *rapid.T) {
		lines := rapid.SliceOfN(line, 0, 12).Draw(rt, "base")
		final := rapid.Bool().Draw(rt, "final")
		base := join(lines, final)
		ours, theirs := join(changed(rt, lines, line, "ours"), final),
			join(changed(rt, lines, line, "theirs"), final)
		same := func(what string, want []byte, b, o, th []byte) {
			if got, n := mergeText(b, o, th, testNames); n != 0 || !bytes.Equal(got, want) {
				rt.Fatalf("%s: base %q ours %q theirs %q: %q, %d conflicts", what, b, o, th, got, n)
			}
		}
		same("one-sided", ours, base, ours, base)
		same("one-sided", theirs, base, base, theirs)
		same("equal", ours, base, ours, ours)
		one, n := mergeText(base, ours, theirs, testNames)
		two, m := mergeText(base, theirs, ours, testNames)
		if n != m || n == 0 && !bytes.Equal(one, two) {
			rt.Fatalf("the order matters: base %q ours %q theirs %q: %q and %q",
				base, ours, theirs, one, two)
		}
		if n == 0 {
			known := map[string]bool{}
			for l := range strings.SplitSeq(
				strings.Join([]string{string(base), string(ours), string(theirs)}, "\n"), "\n") {
				known[l] = true
			}
			for l := range strings.SplitSeq(string(one), "\n") {
				if !known[l] {
					rt.Fatalf("%q comes from nowhere", l)
				}
			}
		}
	})
}

func TestTextMarkers(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, base, ours, theirs string }{
		{"no newline at the end", "a", "b", "c"},
		{"DOS lines", "a\r\nb\r\n", "a\r\nx\r\n", "a\r\ny\r\n"},
		{"nothing in common", "", "a\n", "b\n"},
		{"deleted and changed", "a\nb\nc\n", "a\nc\n", "a\nB\nc\n"},
		{"changes that touch", "a\nb\nc\nd\n", "A\nb\nc\nd\n", "a\nB\nc\nd\n"},
		{"changes with a line between them", "a\nb\nc\nd\n", "A\nb\nc\nd\n", "a\nb\nC\nd\n"},
		{"both append", "a\n", "a\nb\n", "a\nc\n"},
		{"both append the same", "a\n", "a\nb\n", "a\nb\n"},
		{"a newline at the end, on one side", "a\nb", "a\nb\n", "A\nb"},
		{"moved block", "f {\n}\n\ng {\n}\n", "f {\n}\n\nh {\n}\n\ng {\n}\n",
			"f {\n}\n\ng {\n x\n}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, _ := gitMergeFile(t, dir, []byte(c.base), []byte(c.ours), []byte(c.theirs))
			got, _ := mergeText([]byte(c.base), []byte(c.ours), []byte(c.theirs), testNames)
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("a\nb\nc\n"), []byte("a\nx\nc"), []byte("a\nb\nc\nd\n"))
	f.Fuzz(func(t *testing.T, base, ours, theirs []byte) {
		one, n := mergeText(base, ours, theirs, testNames)
		two, m := mergeText(base, theirs, ours, testNames)
		if n != m || n == 0 && !bytes.Equal(one, two) {
			t.Fatalf("the order matters: %q and %q", one, two)
		}
	})
}

// Texts that are too long for the smallest difference merge anyway if they have unique lines, and
// no merge takes long.
func TestLongTexts(t *testing.T) {
	var base, ours, theirs, want []byte
	for i := range 60_000 {
		line := fmt.Appendf(nil, "line %d\n", i)
		if i%3 == 0 {
			line = []byte("}\n")
		}
		base = append(base, line...)
		switch {
		case i%1000 == 17:
			ours = append(ours, "ours\n"...)
			theirs = append(theirs, line...)
			want = append(want, "ours\n"...)
		case i%1000 == 500:
			ours = append(ours, line...)
			theirs = append(append(theirs, line...), "theirs\n"...)
			want = append(append(want, line...), "theirs\n"...)
		default:
			ours, theirs, want = append(ours, line...),
				append(theirs, line...), append(want, line...)
		}
	}
	if got, n := mergeText(base, ours, theirs, testNames); n > 0 || !bytes.Equal(got, want) {
		t.Errorf("%d conflicts, %d bytes of %d", n, len(got), len(want))
	}
	// A short cycle: no line is unique.
	hard := func(step int) []byte {
		var b []byte
		for i := range 200_000 {
			b = append(b, byte('a'+i*i*step%7), '\n')
		}
		return b
	}
	start := time.Now()
	one, n := mergeText(hard(1), hard(2), hard(3), testNames)
	if took := time.Since(start); took > 3*time.Minute || len(one) == 0 {
		t.Errorf("%d conflicts after %v", n, took)
	}
}
