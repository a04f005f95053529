package terminal

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/terminal/terminaltest"
)

// screen collects the output of progress.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// tell sends the events of a turn with two steps, in pieces as from a pipe.
func tell(p *Progress) {
	one, two, three := &document.Step{Index: 1, Name: "one"}, &document.Step{Index: 2, Name: "two"},
		&document.Step{Index: 3, Name: "three"}
	code := 3
	p.Preparing("taking a snapshot")
	p.StepStarted(one)
	for _, piece := range []string{"he", "llo\nwor", "ld\r\n", "10%\r20", "%\r", "100%\n",
		"no newline"} {
		p.StepOutput(one, turnstone.Stdout, []byte(piece))
	}
	p.StepOutput(one, turnstone.Stderr, []byte("\x1b[31moh\x1b[2J\n"))
	p.StepFinished(one, turnstone.StepReport{Status: turnstone.StepPassed, Millis: 1500})
	p.StepStarted(two)
	p.StepFinished(two, turnstone.StepReport{Status: turnstone.StepFailed, ExitCode: &code,
		Millis: 61_000, Note: "disk\x1b]0;x\x07 full"})
	p.StepFinished(three, turnstone.StepReport{Status: turnstone.StepSkipped, Note: "two failed"})
	p.Close()
}

func TestProgressPlain(t *testing.T) {
	var out screen
	tell(newProgress(&out, style{}, 3))
	want := `taking a snapshot
step 1/3 one
  | hello
  | world
  | 100%
  | oh
  | no newline
passed (1.5s)
step 2/3 two
failed, exit 3: disk]0;x full (1m1s)
step 3/3 three: skipped
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestProgressOfUnknownLength(t *testing.T) {
	var out screen
	tell(newProgress(&out, style{}, 0))
	if got := out.String(); !strings.Contains(got, "\nstep 1 one\n") ||
		strings.Contains(got, "/0") {
		t.Error(got)
	}
}

func TestProgressQuiet(t *testing.T) {
	var out screen
	tell(newProgress(&out, style{quiet: true, live: true, width: func() int { return 80 }}, 3))
	if got := out.String(); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestProgressLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out screen
		p := newProgress(&out, style{live: true, colors: true, width: func() int { return 30 }}, 1)
		step := &document.Step{Index: 1, Name: "train"}
		p.StepStarted(step)
		p.StepOutput(step, turnstone.Stdout, []byte("a line that goes on and on and on without an end"))
		time.Sleep(500 * time.Millisecond)
		p.StepFinished(step, turnstone.StepReport{Status: turnstone.StepPassed})
		p.Close()
		got := out.String()
		for _, want := range []string{
			"step 1/1 train",
			"train 0.4s | a line that goe…", // it ticks, and stays within the width
			"\r\x1b[2K  | a line that goes on and on and on without an end\n",
			green + "passed",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in %q", want, got)
			}
		}
		if !strings.HasSuffix(got, "(0.0s)\n") {
			t.Errorf("the live line is left over: %q", got[max(0, len(got)-100):])
		}
	})
}

// A step that prints without newlines does not make progress hold all of its output.
func TestProgressBounded(t *testing.T) {
	var out screen
	p := newProgress(&out, style{}, 1)
	defer p.Close()
	step := &document.Step{Index: 1, Name: "endless"}
	p.StepStarted(step)
	for range 10_000 {
		p.StepOutput(step, turnstone.Stdout, []byte(strings.Repeat("x", 100)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if held := len(p.streams[turnstone.Stdout].rest); held > 2*maxLine {
		t.Errorf("%d bytes are held", held)
	}
	if got := strings.Count(out.String(), "x"); got < 1_000_000-2*maxLine {
		t.Errorf("only %d of 1000000 bytes were printed", got)
	}
}

// TestHostileProgress checks names of guests and documents in progress, line by line.
func TestHostileProgress(t *testing.T) {
	for _, live := range []bool{false, true} {
		var out screen
		p := newProgress(&out, style{live: live, width: func() int { return 10_000 }}, 2)
		step := terminaltest.Filled[document.Step]()
		p.Preparing("not kept, because they hold a secret: BASH_FUNC_" + terminaltest.Hostile)
		p.Building(turnstone.BuildEvent{Template: terminaltest.Hostile, Phase: terminaltest.Hostile,
			Item: terminaltest.Hostile})
		p.StepStarted(step)
		p.StepOutput(step, turnstone.Stdout, []byte(terminaltest.Hostile))
		p.mu.Lock()
		p.draw()
		p.mu.Unlock()
		p.StepFinished(step, *terminaltest.Filled[turnstone.StepReport]())
		p.StepFinished(terminaltest.Filled[document.Step](),
			turnstone.StepReport{Status: turnstone.StepSkipped, Note: terminaltest.Hostile})
		p.Say("turn: %s", terminaltest.Hostile)
		p.Close()
		terminaltest.Harmless(t, "progress", strings.ReplaceAll(out.String(), "\r\x1b[2K", "\n"))
	}
}
