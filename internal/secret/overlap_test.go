package secret

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestOverlap: of overlapping values no byte remains, and each is named.
func TestOverlap(t *testing.T) {
	s := set(t, "A=abcdef", "B=defghi", "C=bcde", "D=ghijkl")
	for in, want := range map[string]string{
		"abcdefghi":       "[secret A][secret B]",
		"-abcdefghi-":     "-[secret A][secret B]-",
		"abcdefghijkl":    "[secret A][secret B][secret D]",
		"abcdefghi ghi":   "[secret A][secret B] ghi",
		"abcde":           "a[secret C]",
		"abcdeghijkl":     "a[secret C][secret D]",
		"abcdefdefghi":    "[secret A][secret B]",
		"defghdefghi def": "defgh[secret B] def",
	} {
		if got := s.Mask(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// TestMarks: the replacement of a value contains no value.
func TestMarks(t *testing.T) {
	for pair, want := range map[string]string{"A=secret": "[hidden]", "A=[secret A]": "[hidden]",
		"A=normal": "[secret A]"} {
		_, value, _ := strings.Cut(pair, "=")
		if got := set(t, pair).Mask(value); got != want {
			t.Errorf("%s: %s", pair, got)
		}
	}
	if got := set(t, "A=secret", "B=hidden").Mask("secret hidden"); got != "*** ***" {
		t.Error(got)
	}
}

// covered is the oracle: for each byte of text, whether it belongs to a value of s.
func covered(s *Set, text []byte) []bool {
	in := make([]bool, len(text))
	for _, n := range s.needles {
		for i := 0; i+len(n.value) <= len(text); i++ {
			if bytes.Equal(text[i:i+len(n.value)], n.value) {
				for k := range n.value {
					in[i+k] = true
				}
			}
		}
	}
	return in
}

// sound checks the writer and the scanner of s on text, divided into pieces by cuts: exactly the
// bytes of values are removed, each run of them has a mark, and the scanner finds a value if and
// only if there is one.
func sound(s *Set, text, cuts []byte) error {
	var out bytes.Buffer
	w, scan := s.Writer(&out), s.Scanner()
	for rest, i := text, 0; len(rest) > 0; i++ {
		n := len(rest)
		if len(cuts) > 0 {
			n = min(n, int(cuts[i%len(cuts)]))
		}
		_, _ = w.Write(rest[:n])
		_, _ = scan.Write(rest[:n])
		// includes empty writes, but a bounded number
		if rest = rest[n:]; n == 0 && i >= len(cuts) {
			cuts = nil
		}
	}
	_ = w.Close()
	if whole := s.Mask(string(text)); whole != out.String() {
		return fmt.Errorf("in pieces %q, whole %q, of %q", out.String(), whole, text)
	}
	in := covered(s, text)
	if there := slices.Contains(in, true); there != (scan.Found() != "") ||
		there != (s.In(string(text)) != "") {
		return fmt.Errorf("the scanner has found %q in %q", scan.Found(), text)
	}
	// Marks contain a byte that the texts here do not contain.
	got := marksOut.Replace(out.String())
	var want strings.Builder
	for i, b := range text {
		switch {
		case !in[i]:
			want.WriteByte(b)
		case i == 0 || !in[i-1]:
			want.WriteByte('\x01')
		}
	}
	for strings.Contains(got, "\x01\x01") {
		got = strings.ReplaceAll(got, "\x01\x01", "\x01")
	}
	if got != want.String() {
		return fmt.Errorf("%q became %q, without marks %q, want %q", text,
			out.String(), got, want.String())
	}
	return nil
}

var marksOut = strings.NewReplacer("[secret A]", "\x01", "[secret B]", "\x01", "[secret C]", "\x01",
	"[secret D]", "\x01", "[secret E]", "\x01")

// For any division of a text into writes, no byte of a value gets through, and every other byte
// does.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SampledFrom([]string{"ab", "abc\n", "abcdefgh"}).Draw(t, "letters")
		letter := rapid.SampledFrom([]byte(letters))
		var pairs []string
		for i := range rapid.IntRange(1, 5).Draw(t, "secrets") {
			value := rapid.SliceOfN(letter, minValue, 12).Draw(t, "value")
			if i > 0 && rapid.Bool().Draw(t, "overlaps") { // joined with the previous piece
				_, last, _ := strings.Cut(pairs[i-1], "=")
				value = append([]byte(last[rapid.IntRange(1, len(last)-1).Draw(t, "from"):]),
					value...)
			}
			pairs = append(pairs, string(rune('A'+i))+"="+string(value))
		}
		s, err := New(pairs)
		if err != nil {
			t.Skip("blank")
		}
		var text []byte
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			if rapid.Bool().Draw(t, "there") {
				v := s.needles[rapid.IntRange(0, len(s.needles)-1).Draw(t, "which")].value
				text = append(text, v[:rapid.IntRange(0, len(v)).Draw(t, "to")]...)
			} else {
				text = append(text, rapid.SliceOfN(letter, 0, 20).Draw(t, "text")...)
			}
		}
		if err := sound(s, text, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "cuts")); err != nil {
			t.Fatal(err)
		}
	})
}

// fuzzed returns a set of the first lines, and removes the characters of marks from values and
// text.
func fuzzed(values, text []byte) (*Set, []byte) {
	clean := func(b []byte) []byte {
		return bytes.Map(func(r rune) rune {
			if r == '[' || r == ']' || r == '*' || r < ' ' {
				return -1
			}
			return r
		}, bytes.ToValidUTF8(b, nil))
	}
	var pairs []string
	for i, v := range bytes.SplitN(values, []byte("\n"), 5) {
		if v = clean(v); len(bytes.TrimSpace(v)) >= minValue && len(v) <= MaxValue {
			pairs = append(pairs, string(rune('A'+i))+"="+string(v))
		}
	}
	s, err := New(pairs)
	if err != nil || len(pairs) == 0 || slices.ContainsFunc(s.marks, func(m string) bool {
		return !strings.HasPrefix(m, "[secret ")
	}) {
		return nil, nil
	}
	return s, clean(text)
}

func FuzzWriter(f *testing.F) {
	f.Add([]byte("abcdef\ndefghi"), []byte("xabcdefghi"), []byte{1, 3})
	f.Add([]byte("aaaa\naaaaab\nbaaa"), []byte("aaaaaaabaaaaaab"), []byte{2})
	f.Fuzz(func(t *testing.T, values, text, cuts []byte) {
		s, text := fuzzed(values, text)
		if s == nil {
			return
		}
		if err := sound(s, text, cuts); err != nil {
			t.Error(err)
		}
		for _, form := range []string{s.Written().Mask(string(text)),
			s.Written().MaskCut(string(text)), s.MaskCut(string(text))} {
			for _, part := range strings.Split(form, "[secret ") {
				if s.In(strings.TrimLeft(part, "ABCDE]")) != "" && s.In(part) != "" {
					t.Errorf("%q is left of %q", form, text)
				}
			}
		}
	})
}

// FuzzScanner: any bytes, with values of any bytes; a scanner finds the same as bytes.Contains.
func FuzzScanner(f *testing.F) {
	f.Add([]byte("abcdef"), []byte("defghi\xff"), []byte("xabcdefghi"), uint8(3))
	f.Fuzz(func(t *testing.T, one, two, text []byte, cut uint8) {
		var s *Set
		for i, v := range [][]byte{one, two, []byte("third-value"), []byte("fourth")} {
			s = s.With(string(rune('A'+i)), string(v))
		}
		scan, there := s.Scanner(), false
		for _, n := range s.needles {
			there = there || bytes.Contains(text, n.value)
		}
		for rest := text; len(rest) > 0; {
			n := min(len(rest), max(1, int(cut)))
			_, _ = scan.Write(rest[:n])
			rest = rest[n:]
		}
		if there != (scan.Found() != "") {
			t.Errorf("found %q in %q, of %q", scan.Found(), text, s.needles)
		}
	})
}

// bash returns bash's output with value as $1.
func bash(t *testing.T, script, value string) string {
	// some commands are meant to fail
	out, _ := exec.Command("bash", "-c", script, "x", value).CombinedOutput()
	if len(out) == 0 {
		t.Errorf("%s has written nothing", script)
	}
	return string(out)
}

// TestWritten: the written forms of a value are found, and those of other values are not.
func TestWritten(t *testing.T) {
	const value = "a\"b<c\t d'é\\x"
	s := set(t, "A="+value, "B=Line-one-XY\nLine-two-XY", "C=Upper-Case")
	for _, text := range []string{
		fmt.Sprintf("%q", value), fmt.Sprintf("%+q", value), jsonOf(value, true),
		jsonOf(value, false), strings.Join(strings.Fields(value), " "),
		strings.ReplaceAll(value, "'", `'\''`), bash(t, `printf %q "$1"`, value),
		bash(t, `set -x; : "$1"`, value), bash(t, `"no $1"`, value),
		bash(t, `printf %q "$1"`, "Line-one-XY\nLine-two-XY"), `Line-one-XY\nLine-two-XY`,
		"Line-one-XY Line-two-XY", value,
	} {
		if got := s.Written().Mask(text); !strings.Contains(got, "[secret ") ||
			s.Written().In(got) != "" {
			t.Errorf("%s: %s", text, got)
		}
	}
	if got := s.Written().Mask("a b c"); got != "a b c" {
		t.Error(got)
	}
	if got := set(t, "A=ab\xff\xfecd").Written().Mask("ab\uFFFD\uFFFDcd ab\uFFFDcd"); got != "[secret A] [secret A]" {
		t.Error(got)
	}
	if got := s.Hosts().Mask("see upper-case.example.org"); got != "see [secret C].example.org" {
		t.Error(got)
	}
	if plain := set(t, "A=plain-value"); plain.Hosts() != plain {
		t.Error("a value that is written in one way only has others")
	}
	if (*Set)(nil).Written() != nil || (*Set)(nil).Hosts() != nil ||
		s.Written().Written() != s.Written() {
		t.Error("there is more to write down")
	}
}
