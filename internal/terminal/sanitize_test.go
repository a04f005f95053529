package terminal

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSanitizer(t *testing.T) {
	for _, tc := range []struct{ name, in, colored, plain string }{
		{"text", "a\tb\r\nπ 漢字", "a\tb\r\nπ 漢字", "a\tb\r\nπ 漢字"},
		{"clipboard", "a\x1b]52;c;cm0gLXJmIC8=\x07b", "ab", "ab"},
		{"title, ended by ST", "a\x1b]0;pwned\x1b\\b", "ab", "ab"},
		{"cursor and erase", "a\x1b[2Ab\x1b[2Kc\x1b[Hd", "abcd", "abcd"},
		{"device query", "a\x1b[cb\x1b[6n", "ab", "ab"},
		{"device control string", "a\x1bP$q\"p\x1b\\b", "ab", "ab"},
		{"reset and charset", "a\x1bcb\x1b(0c", "abc", "abc"},
		{"bell, backspace, NUL, DEL", "a\x07\x08\x00\x7fb", "ab", "ab"},
		{"color", "\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m", "red"},
		{"color without parameters", "\x1b[mx", "\x1b[mx", "x"},
		{"color, 24 bits, colons", "\x1b[38:2:1:2:3mx", "\x1b[38:2:1:2:3mx", "x"},
		{"color, 24 bits, semicolons", "\x1b[38;2;1;2;3mx", "\x1b[38;2;1;2;3mx", "x"},
		{"absurd color", "\x1b[99999999999999999999mx", "x", "x"},
		{"not a color but ends in m", "\x1b[>4;2mx\x1b[?1mx", "xx", "xx"},
		{"C1 as a raw byte", "a\x9b31mb", "a\uFFFD31mb", "a\uFFFD31mb"},
		{"C1 as UTF-8", "a\u009b31mb", "a31mb", "a31mb"},
		{"Latin-1", "caf\xe9\nnext", "caf\uFFFD\nnext", "caf\uFFFD\nnext"},
		{"reordering marks", "a\u202eb\u2066c", "abc", "abc"},
		{"sequence that never ends", "a\x1b]52;c;" + strings.Repeat("A", 100_000), "a", "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for colors, want := range map[bool]string{true: tc.colored, false: tc.plain} {
				if got := string(newSanitizer(colors).clean([]byte(tc.in))); got != want {
					t.Errorf("colors %v: got %q, want %q", colors, got, want)
				}
				// The same, byte by byte: a sequence may be split anywhere.
				s, got := newSanitizer(colors), ""
				for i := range len(tc.in) {
					got += string(s.clean([]byte{tc.in[i]}))
				}
				if got != want {
					t.Errorf("colors %v, byte by byte: got %q, want %q", colors, got, want)
				}
			}
		})
	}
}

// TestMarker checks that text to read hides nothing behind a carriage return or another control.
func TestMarker(t *testing.T) {
	for _, tc := range []struct{ name, in, text, patch string }{
		{"hidden beginning", "rm -rf /\recho hello  \n", "rm -rf /^Mecho hello  \n",
			"rm -rf /^Mecho hello  \n"},
		{"line ends of DOS", "a\r\nb\r\n", "a\r\nb\r\n", "a\r\nb\r\n"},
		{"one too many", "a\r\r\nb", "a^M\r\nb", "a^M\r\nb"},
		{"at the end", "a\r", "a^M", "a^M"},
		{"controls", "a\x08\x00\x7fb\u202ec", "a^H^@^?b\\u202ec", "a^H^@^?b\\u202ec"},
		{"sequences", "a\x1b[2K\x1b[8mb\x1b]0;x\x07c", "a\x1b[8mbc", "a^[[2K^[[8mb^[]0;x^Gc"},
		{"return in a sequence", "a\x1b[\r2Kb", "a^Mb", "a^[[^M2Kb"},
		{"not UTF-8", "a\xffb", "a\uFFFDb", "a\uFFFDb"},
	} {
		for escapes, want := range map[bool]string{false: tc.text, true: tc.patch} {
			if got := string(newMarker(true, escapes).text([]byte(tc.in))); got != want {
				t.Errorf("%s, escapes %v: got %q, want %q", tc.name, escapes, got, want)
			}
			s, got := newMarker(true, escapes), ""
			for i := range len(tc.in) {
				got += string(s.clean([]byte{tc.in[i]}))
			}
			if got += string(s.last()); got != want {
				t.Errorf("%s, escapes %v, byte by byte: got %q, want %q", tc.name, escapes, got,
					want)
			}
		}
	}
}

func FuzzMarker(f *testing.F) {
	f.Add([]byte("a\rb\r\n\x1b[\rc\xc3\r"), 3, false)
	f.Fuzz(func(t *testing.T, in []byte, cut int, escapes bool) {
		cut = min(max(cut, 0), len(in))
		s := newMarker(false, escapes)
		got := append([]byte(nil), s.clean(in[:cut])...)
		got = append(got, s.clean(in[cut:])...)
		got = append(got, s.last()...)
		for _, r := range strings.ReplaceAll(string(got), "\r\n", "\n") {
			if r != '\n' && r != '\t' && !visible(r) {
				t.Errorf("%q passed in %q", r, got)
			}
		}
		if whole := newMarker(false, escapes).text(in); !bytes.Equal(whole, got) {
			t.Errorf("cut at %d: got %q, whole %q", cut, got, whole)
		}
	})
}

func TestPrintable(t *testing.T) {
	if got, want := Printable("a\x1b]0;x\x07\tb\u202ec\r\nhint: d"),
		"a]0;x bc  hint: d"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNamed(t *testing.T) {
	for name, want := range map[string]string{
		"/a b/ä": "/a b/ä", "/a\nb": `"/a\nb"`, "/\x1b[2J": `"/\x1b[2J"`, "/\xff": `"/\xff"`,
		"/\u202ex": `"/\u202ex"`, `"q"`: `"\"q\""`, `/a"b`: `/a"b`,
	} {
		if got := Name(name); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
}

func FuzzSanitizer(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\x1b]52;c;x\x07\xc3"), 3)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		cut = min(max(cut, 0), len(in))
		s := newSanitizer(false)
		got := append([]byte(nil), s.clean(in[:cut])...)
		got = append(got, s.clean(in[cut:])...)
		if !utf8.Valid(got) {
			t.Errorf("not UTF-8: %q", got)
		}
		for _, r := range string(got) {
			if r != '\n' && r != '\r' && r != '\t' && !visible(r) {
				t.Errorf("%q passed in %q", r, got)
			}
		}
		if whole := newSanitizer(false).clean(in); !bytes.Equal(whole, got) {
			t.Errorf("cut at %d: got %q, whole %q", cut, got, whole)
		}
	})
}
