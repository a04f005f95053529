package brief

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc…"},
		{"aä", 3, "aä"},
		{"aäb", 2, "a…"},
		{"a\xffb", 3, "a\xffb"},
		{"a\xffbc", 3, "ab…"},
	} {
		if got := Clip(tt.in, tt.n); got != tt.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
}

func TestClipKeepsWholeCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "s"), rapid.IntRange(0, 40).Draw(t, "n")
		got := Clip(s, n)
		if !utf8.ValidString(got) || len(got) > max(len(s), n+len("…")) {
			t.Fatalf("Clip(%q, %d) = %q", s, n, got)
		}
		if cut, ok := strings.CutSuffix(got, "…"); got != s &&
			(!ok || !strings.HasPrefix(s, cut) || len(cut)+utf8.UTFMax <= n) {
			t.Fatalf("Clip(%q, %d) = %q", s, n, got)
		}
	})
}

func TestLine(t *testing.T) {
	if got, want := Line(" a\r\n\tb  c\n"), "a b c"; got != want {
		t.Errorf("Line = %q, want %q", got, want)
	}
}
