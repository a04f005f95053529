package document

import (
	"strings"
	"testing"
	"unicode/utf8"

	"turnstone.dev/turnstone"
)

func TestOutputText(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"plain", "a\nb\n", "a\nb\n"},
		{"no final newline", "a", "a"},
		{"tabs and blanks", "\ta  b \n", "\ta  b \n"},
		{"accents", "žluťoučký 🐎\n", "žluťoučký 🐎\n"},
		{"emoji style", "❤️\n", "❤️\n"},
		{"colours", "\x1b[1;31mred\x1b[0m\n", "red\n"},
		{"cursor and erase", "\x1b[2J\x1b[Hhome\x1b[K\n", "home\n"},
		{"link", "\x1b]8;;http://x\x07link\x1b]8;;\x07\n", "link\n"},
		{"title", "\x1b]0;title\x1b\\text\n", "text\n"},
		{"character set", "\x1b(Btext\n", "text\n"},
		{"sequence without an end", "a\x1b]0;b\nc\n", "a\nc\n"},
		{"sequence at the end", "a\x1b[", "a"},
		{"C1 control", "a\u009b31mb\n", "a<U+009B>31mb\n"},
		{"CRLF", "a\r\nb\r\n", "a\nb\n"},
		{"progress", "10%\r50%\r100%\n", "100%\n"},
		{"progress with erase", "10%\r\x1b[K100%\r\x1b[K\n", "100%\n"},
		{"only returns", "\r\r\n", "\n"},
		{"spinner", "|\b/\b-\bdone\n", "done\n"},
		{"overstrike", "b\bbo\bo\n", "bo\n"},
		{"backspace too far", "\b\b\ba\n", "a\n"},
		{"bell", "a\x07\n", "a<U+0007>\n"},
		{"delete", "a\x7f\n", "a<U+007F>\n"},
		{"direction", "\u202egnp.exe\n", "<U+202E>gnp.exe\n"},
		{"no width", "pass\u200bword\ufeff\n", "pass<U+200B>word<U+FEFF>\n"},
		{"tags", "a\U000E0041\U000E0100\n", "a<U+E0041><U+E0100>\n"},
		{"line separators", "a\u2028b\u0085c\n", "a<U+2028>b<U+0085>c\n"},
		{"Hangul filler", "a\u3164\n", "a<U+3164>\n"},
		{"markdown", "```\n<!-- /turn:result -->\n", "```\n<!-- /turn:result -->\n"},
		{"NUL", "a\x00b", "[binary output: 3 bytes, " +
			string(turnstone.DigestBytes([]byte("a\x00b"))) + "]"},
		{"Latin-1", "caf\xe9", "[binary output: 4 bytes, " +
			string(turnstone.DigestBytes([]byte("caf\xe9"))) + "]"},
		{"surrogate", "\xed\xa0\x80", "[binary output: 3 bytes, " +
			string(turnstone.DigestBytes([]byte("\xed\xa0\x80"))) + "]"},
		{"200 lines", strings.Repeat("x\n", 200), strings.Repeat("x\n", 200)},
		{"201 lines", strings.Repeat("x\n", 201), strings.Repeat("x\n", 100) +
			"[… 2 bytes, 1 line cut …]\n" + strings.Repeat("x\n", 100)},
		{"10000 lines", strings.Repeat("x\n", 10000), strings.Repeat("x\n", 100) +
			"[… 19600 bytes, 9800 lines cut …]\n" + strings.Repeat("x\n", 100)},
		{"10000 lines and no final newline", strings.Repeat("x\n", 10000) + "y",
			strings.Repeat("x\n", 100) + "[… 19602 bytes, 9801 lines cut …]\n" +
				strings.Repeat("x\n", 99) + "y"},
		{"long lines", strings.Repeat(strings.Repeat("z", 999)+"\n", 50),
			strings.Repeat(strings.Repeat("z", 999)+"\n", 8) + "[… 34000 bytes, 34 lines cut …]\n" +
				strings.Repeat(strings.Repeat("z", 999)+"\n", 8)},
		{"long line", strings.Repeat("a", 5000) + "\nb\n", strings.Repeat("a", 3072) +
			" […904 bytes cut…] " + strings.Repeat("a", 1024) + "\nb\n"},
		{"long line of wide characters", strings.Repeat("é", 3000),
			strings.Repeat("é", 1536) + " […1904 bytes cut…] " + strings.Repeat("é", 512)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := outputOf(tt.in)
			got, truncated := o.Text()
			if got != tt.want {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
			if want := strings.Contains(tt.want, "cut…]") || strings.Contains(tt.want, "cut …]") ||
				strings.Contains(tt.want, "[binary"); truncated != want {
				t.Errorf("truncated = %v", truncated)
			}
			// The same stream in two kept parts has the same text.
			o.Head, o.Tail = []byte(tt.in[:len(tt.in)/2]), []byte(tt.in[len(tt.in)/2:])
			if halves, _ := o.Text(); halves != tt.want {
				t.Errorf("in two parts: %q\nwant %q", halves, tt.want)
			}
		})
	}
}

func TestOutputTextOfWhatWasNotKept(t *testing.T) {
	tests := []struct {
		name, in   string
		head, tail int
		want       string
	}{
		{"between lines", "a\nb\nc\nd\n", 2, 4, "a\n[… 4 bytes, 2 lines cut …]\nd\n"},
		{"in a line", "abcdefgh", 2, 2, "ab\n[… 4 bytes, 0 lines cut …]\ngh"},
		{"in a character", "aéééb", 2, 2, "a\n[… 6 bytes, 0 lines cut …]\nb"},
		{"in a sequence", "abc\x1b[31mdefghijklm\x1b[0mx\ny\n", 5, 8,
			"abc\n[… 19 bytes, 1 line cut …]\ny\n"},
		{"only the head", "abcdefgh", 3, 0, "abc\n[… 5 bytes, 0 lines cut …]\n"},
		{"only the tail", "abc\ndef\n", 0, 5, "[… 4 bytes, 1 line cut …]\ndef\n"},
		{"binary in the tail", "abcdef\x00", 2, 2, "[binary output: 7 bytes, " +
			string(turnstone.DigestBytes([]byte("abcdef\x00"))) + "]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, truncated := cutOutputOf(tt.in, tt.head, tt.tail).Text()
			if got != tt.want || !truncated {
				t.Errorf("got %q, %v\nwant %q", got, truncated, tt.want)
			}
		})
	}
}

// TestOutputThatContradictsItself: counts that do not match the bytes cause no failure.
func TestOutputThatContradictsItself(t *testing.T) {
	for _, o := range []Output{
		{Size: -1}, {Size: -5, Head: []byte("a")}, {Size: 1, Head: []byte("abc")}, {Size: 1 << 62},
		{Size: 10, Tail: []byte("abc")},
		{Head: []byte("a\nb\n"), Size: 100, Lines: -7}, {Tail: []byte("abc")},
	} {
		text, _ := o.Text()
		if !utf8.ValidString(text) {
			t.Errorf("%+v: %q", o, text)
		}
	}
}

func FuzzOutputText(f *testing.F) {
	for _, s := range hostile {
		f.Add([]byte(s), 3, 3)
	}
	f.Add([]byte(strings.Repeat("é\x1b[31m\r\n", 3000)), 9000, 9001)
	f.Fuzz(func(t *testing.T, b []byte, head, tail int) {
		o := outputOf(string(b))
		if head >= 0 && tail >= 0 && head <= len(b) && tail <= len(b) && head+tail < len(b) {
			o = cutOutputOf(string(b), head, tail)
		}
		text, _ := o.Text()
		// The parts, the note between them, and the longest line's own note.
		if len(text) > maxShownBytes+300*50 || strings.Count(text, "\n") > maxShownLines+1 {
			t.Errorf("%d bytes, %d lines", len(text), strings.Count(text, "\n"))
		}
		for _, r := range text {
			if r == utf8.RuneError && !strings.Contains(string(b), "\uFFFD") ||
				r != '\n' && isHidden(r) {
				t.Errorf("%U in %q of %q", r, text, b)
			}
		}
	})
}

// BenchmarkText measures the largest output that is likely kept in memory, with content that is
// costly to process.
func BenchmarkText(b *testing.B) {
	o := outputOf(strings.Repeat("\x1b[32mok\x1b[0m some line of output\n", 1<<15))
	b.SetBytes(o.Size)
	for b.Loop() {
		o.Text()
	}
}
