package receipt

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/template/builtin"
)

// TestImageHint checks shells' messages about a missing program, and the images that have it.
func TestImageHint(t *testing.T) {
	for _, tt := range []struct {
		image string
		f     turnstone.FailureReport
		want  string
	}{
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "pip: command not found"},
			"image: python has pip"},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "node: not found"},
			"image: nodejs has node"},
		{"base", turnstone.FailureReport{ExitCode: 127,
			Message: "'python3': No such file or directory", Text: "./x.py"},
			"image: python has python3"},
		{"base", turnstone.FailureReport{ExitCode: 127,
			Message: "/usr/bin/env: ‘npm’: No such file or directory"}, "image: nodejs has npm"},
		{"docker.io/library/alpine:3@sha256:00",
			turnstone.FailureReport{ExitCode: 127, Text: "curl -s x"}, "image: base has curl"},
		{"nodejs", turnstone.FailureReport{ExitCode: 127, Text: "claude -p x"},
			"image: claude-code has claude"},
		{"python", turnstone.FailureReport{ExitCode: 127, Message: "pip: command not found"}, ""},
		{"claude-code", turnstone.FailureReport{ExitCode: 127,
			Message: "npm: command not found"}, ""},
		{"base", turnstone.FailureReport{ExitCode: 127,
			Message: "no-such-program: command not found"}, ""},
		{"base", turnstone.FailureReport{ExitCode: 1, Message: "pip: command not found"}, ""},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "pip\nforged: command not found",
			Text: "(x)"}, ""},
	} {
		if note := noteAfter(t, tt.image, "", tt.f); note != tt.want {
			t.Errorf("%+v on %s: %q, want %q", tt.f, tt.image, note, tt.want)
		}
	}
	if note := noteAfter(t, "base", "ended by HUP",
		turnstone.FailureReport{ExitCode: 127, Text: "pip"},
		turnstone.FailureReport{ExitCode: 2,
			Text: "x"}); note != "ended by HUP; image: python has pip" {
		t.Error(note)
	}
}

// noteAfter returns the note of a step on image that had a note and failed with these failures.
func noteAfter(t *testing.T, image, note string, failures ...turnstone.FailureReport) string {
	t.Helper()
	doc := parse(t, "```bash\ntrue\n```\n")
	s := New(Options{Document: doc, Image: func(program string) string { return builtin.OtherWithProgram(image, program) }})
	st := s.Start(doc.Steps[0])
	s.commands[0] = &commands{failures: failures, report: &trace.Report{}}
	st.res.Status, st.res.Note = turnstone.StepFailed, note
	return st.Finish().Note
}
