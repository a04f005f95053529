package executor

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/wire"
)

// TestImageHint: what shells say of a program that is not there, and images that have it.
func TestImageHint(t *testing.T) {
	for _, tt := range []struct {
		image string
		f     turnstone.FailureReport
		want  string
	}{
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "pip: command not found"}, "image: python has pip"},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "node: not found"}, "image: nodejs has node"},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "'python3': No such file or directory", Text: "./x.py"}, "image: python has python3"},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "/usr/bin/env: ‘npm’: No such file or directory"}, "image: nodejs has npm"},
		{"docker.io/library/alpine:3@sha256:00", turnstone.FailureReport{ExitCode: 127, Text: "curl -s x"}, "image: base has curl"},
		{"nodejs", turnstone.FailureReport{ExitCode: 127, Text: "claude -p x"}, "image: claude-code has claude"},
		{"python", turnstone.FailureReport{ExitCode: 127, Message: "pip: command not found"}, ""},
		{"claude-code", turnstone.FailureReport{ExitCode: 127, Message: "npm: command not found"}, ""},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "no-such-program: command not found"}, ""},
		{"base", turnstone.FailureReport{ExitCode: 1, Message: "pip: command not found"}, ""},
		{"base", turnstone.FailureReport{ExitCode: 127, Message: "pip\nforged: command not found", Text: "(x)"}, ""},
	} {
		r := &run{plan: &plan{image: tt.image}, commands: []*commands{{failures: []turnstone.FailureReport{tt.f}}}}
		res := &document.StepResult{Status: turnstone.StepFailed}
		if r.noteImage(&document.Step{Index: 1}, res); res.Note != tt.want {
			t.Errorf("%+v on %s: %q, want %q", tt.f, tt.image, res.Note, tt.want)
		}
	}
	r := &run{plan: &plan{image: "base"}, commands: []*commands{{failures: []turnstone.FailureReport{{ExitCode: 127, Text: "pip"}, {ExitCode: 2, Text: "x"}}}}}
	res := &document.StepResult{Status: turnstone.StepFailed, Note: "ended by HUP"}
	if r.noteImage(&document.Step{Index: 1}, res); res.Note != "ended by HUP; image: python has pip" {
		t.Error(res.Note)
	}
	start := turnstone.Errorf(wire.MethodProcessStart, turnstone.KindNotFound, "pip",
		"no such program")
	if err := hintImage("base", "pip", start); turnstone.HintOf(err) != "--image python has pip" {
		t.Error(turnstone.HintOf(err))
	}
}
