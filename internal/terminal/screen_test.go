package terminal

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// TestFrame: lines are cut to the screen, and nothing in them is obeyed.
func TestFrame(t *testing.T) {
	got := frame([]string{"one", "\x1b]0;title\x07\x1b[10Atwo\r\nthree\u202e", strings.Repeat("x", 30), "no"}, 10, 3)
	if n := strings.Count(got, "\x1b"); n != 5 { // home, the end of each line, the rest
		t.Errorf("%d sequences in %q", n, got)
	}
	lines := strings.Split(got, "\r\n")
	if len(lines) != 3 || strings.Contains(got, "\x07") || strings.Contains(got, "\u202e") ||
		strings.Contains(got, "no") {
		t.Errorf("%q", got)
	}
	for _, l := range lines {
		if ansi.StringWidth(l) > 10 {
			t.Errorf("%q is too wide", l)
		}
	}
	if empty := frame(nil, 1, 1); empty != "\x1b[H\x1b[J" {
		t.Errorf("%q", empty)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add("a\x1b[2J", 5, 5)
	f.Fuzz(func(t *testing.T, line string, columns, rows int) {
		columns, rows = 1+(columns&0xff), 1+(rows&0xff)
		got := frame([]string{line, line}, columns, rows)
		if n := min(2, rows); strings.Count(got, "\x1b") != n+2 {
			t.Errorf("%q", got)
		}
		for _, l := range strings.Split(got, "\r\n") {
			if ansi.StringWidth(l) > columns {
				t.Errorf("%q is wider than %d", l, columns)
			}
		}
	})
}
