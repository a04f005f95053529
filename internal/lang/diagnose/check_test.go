package diagnose

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// check verifies the promises of a finding for any input.
func check(t *testing.T, steps []Step, found []Finding) {
	t.Helper()
	if len(found) > maxFound {
		t.Errorf("%d findings", len(found))
	}
	span := func(step int, s syntax.Span) {
		t.Helper()
		if step < 0 || step >= len(steps) || steps[step].Script == nil {
			t.Fatalf("a place in step %d of %d", step, len(steps))
		}
		src := steps[step].Script.Source
		if s.Start < 0 || s.Start > s.End || s.End > len(src) {
			t.Fatalf("the span %+v is not in the script of %d bytes", s, len(src))
		}
		if s.Line != 1+bytes.Count(src[:s.Start], []byte("\n")) ||
			s.EndLine != 1+bytes.Count(src[:s.End], []byte("\n")) ||
			s.Column != s.Start-bytes.LastIndexByte(src[:s.Start], '\n') ||
			s.EndColumn != s.End-bytes.LastIndexByte(src[:s.End], '\n') {
			t.Errorf("lines and columns of %+v are wrong", s)
		}
	}
	for _, f := range found {
		span(f.Step, f.Span)
		if len(f.Frames) > maxFrames {
			t.Errorf("%d frames", len(f.Frames))
		}
		for i, frame := range f.Frames {
			span(frame.Step, frame.Span)
			if i == len(f.Frames)-1 && (frame.Step != f.Step || frame.Span != f.Span) {
				t.Errorf("the finding %+v is not its innermost frame", f)
			}
		}
		if f.Message == "" || len(f.Message) > maxMessage || !utf8.ValidString(f.Message) ||
			strings.ContainsAny(f.Message, "\n\r\t\x00\x1b\x7f\u202e\u2028") {
			t.Errorf("the message %q", f.Message)
		}
		if f.Tool == "" || strings.ContainsAny(f.Tool, "\n\x1b\x00") {
			t.Errorf("the tool %q", f.Tool)
		}
	}
}
