package ui

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// TestOutputIsText: however an output is cut into parts, its text is that of the whole, in each stream.
func TestOutputIsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.OneOf(rapid.Just([]byte("naïve ☕ 🙂")), rapid.SliceOfN(rapid.Byte(), 0, 6),
			rapid.Custom(func(t *rapid.T) []byte { return []byte(rapid.String().Draw(t, "text")) }))
		n := &job{changed: make(chan struct{})}
		step := &document.Step{Index: 1}
		whole := map[turnstone.Stream]string{}
		for range rapid.IntRange(0, 12).Draw(t, "parts") {
			stream := rapid.SampledFrom([]turnstone.Stream{turnstone.Stdout, turnstone.Stderr}).Draw(t, "stream")
			b := part.Draw(t, "part")
			at := rapid.IntRange(0, len(b)).Draw(t, "cut")
			n.StepOutput(step, stream, b[:at])
			n.StepOutput(step, stream, b[at:])
			whole[stream] += string(b)
		}
		n.StepFinished(step, turnstone.StepReport{})
		got := map[turnstone.Stream]string{}
		for _, e := range n.events {
			if e.Kind == "output" {
				if e.Text == "" || !utf8.ValidString(e.Text) {
					t.Fatalf("%q", e.Text)
				}
				got[e.Stream] += e.Text
			}
		}
		for stream, b := range whole {
			// The bytes of one fault are one mark or several, by where the parts end.
			if want := strings.ToValidUTF8(b, "\uFFFD"); fold(got[stream]) != fold(want) || utf8.ValidString(b) && got[stream] != b {
				t.Fatalf("%q of %q", got[stream], b)
			}
		}
	})
}

func fold(s string) string {
	for strings.Contains(s, "\uFFFD\uFFFD") {
		s = strings.ReplaceAll(s, "\uFFFD\uFFFD", "\uFFFD")
	}
	return s
}
