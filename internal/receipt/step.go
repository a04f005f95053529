package receipt

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/wire"
)

// A Step is a running step. Its methods are called in this order: Begin, Records, End, then one of
// Exited, TimedOut and Cut, and Finish.
type Step struct {
	steps *Steps
	step  *document.Step
	at    int // in steps
	res   *document.StepResult

	began            time.Time
	stdout, stderr   *capture
	maskOut, maskErr io.WriteCloser
	clock            *guestClock
	records          []wire.ShellRecord
}

// Start returns a step that is about to run. Until it ends, its result is that the executor ended
// during the step.
func (s *Steps) Start(step *document.Step) *Step {
	st := &Step{steps: s, step: step, at: step.Index - 1, res: &s.results[step.Index-1]}
	st.res.Status, st.res.Note = turnstone.StepError, "the executor ended during this step"
	return st
}

// Begin returns the writers of the step's outputs.
func (st *Step) Begin() wire.Stdio {
	st.stdout, st.stderr = st.capture(turnstone.Stdout, "stdout"),
		st.capture(turnstone.Stderr, "stderr")
	words := st.steps.opts.Secrets.Written()
	st.maskOut, st.maskErr = words.Writer(st.stdout), words.Writer(st.stderr)
	st.began = time.Now()
	st.steps.began[st.at] = st.began
	st.clock = newGuestClock(st.began)
	return wire.Stdio{Out: st.maskOut, Err: st.maskErr}
}

func (st *Step) capture(stream turnstone.Stream, name string) *capture {
	o := &st.steps.opts
	c := newCapture(o.Dir, o.Shown, fmt.Sprintf("step-%d.%s", st.step.Index, name), func(p []byte) {
		if o.Output != nil {
			o.Output(st.step, stream, p)
		}
	})
	c.scan, c.limit, c.floor = o.Secrets.Scanner(), o.Limit, o.Floor
	return c
}

// Records takes the guest's records of the step's commands while it runs.
func (st *Step) Records(more []wire.ShellRecord) {
	st.clock.told(more)
	if len(st.records)+len(more) <= trace.MaxRecords {
		st.records = append(st.records, more...)
	}
}

// End takes the guest's report of the step's end; an empty Path means that there is none.
func (st *Step) End(end *wire.StepEnd) {
	s, res := st.steps, st.res
	end.Env = nil // up to 16 MiB, and unused
	res.Duration = time.Since(st.began)
	_, _ = st.maskOut.Close(), st.maskErr.Close() // a capture accepts everything
	res.Stdout, res.Stderr = st.stdout.finish(), st.stderr.finish()
	s.outputs[st.at] = [2]*capture{st.stdout, st.stderr}
	if end.Path != "" {
		st.analyse(end)
	}
}

// Took sets the step's duration, for a step that had ended before Begin.
func (st *Step) Took(d time.Duration) { st.res.Duration = d }

// Began sets when the step began, for a step that had ended before Begin.
func (st *Step) Began(at time.Time) { st.steps.began[st.at] = at }

// Unknown sets the result of a step that has no exit status.
func (st *Step) Unknown(note string) {
	st.res.Status, st.res.Note = turnstone.StepError, st.steps.Line(note)
}

// Note adds to the note of a step that has ended.
func (st *Step) Note(note string) {
	if note = st.steps.Line(note); note != "" && st.res.Note != "" {
		note = st.res.Note + "; " + note
	}
	st.res.Note = cmp.Or(note, st.res.Note)
}

// Lacks adds a note about an output of which only the beginning was received.
func (st *Step) Lacks(stream turnstone.Stream, why string) {
	out := &st.res.Stdout
	if stream == turnstone.Stderr {
		out = &st.res.Stderr
	}
	if why == "" {
		return
	}
	if out.Note != "" {
		why = out.Note + "; " + why
	}
	out.Note = why
}

// analyse keeps the data about the step's commands.
func (st *Step) analyse(end *wire.StepEnd) {
	s := st.steps
	c := s.scripts.analyse(st.step, end, st.records, st.stderr, s.cwd, s.opts.Commands)
	c.zero, s.commands[st.at] = st.clock.zero(), c
	st.res.Failures = c.shown
	if s.opts.Commands {
		st.res.Commands, st.res.CommandsNote = c.table, c.note
	}
	if end.Cwd != "" && !end.StateLost {
		s.cwd = end.Cwd
	}
}

// Exited sets the result of a step that ended by itself.
func (st *Step) Exited(end *wire.StepEnd) {
	code := int(end.Exit.ExitCode)
	st.res.ExitCode, st.res.Status, st.res.Note = &code, turnstone.StepPassed,
		st.steps.Line(exitNote(end))
	if code != 0 {
		st.res.Status = turnstone.StepFailed
	}
}

// TimedOut sets the result of a step that was killed at its time limit.
func (st *Step) TimedOut(note string) {
	st.res.Status, st.res.Note = turnstone.StepTimeout, note
}

// Cut sets the note of a step whose end is unknown.
func (st *Step) Cut(why error) { st.res.Note = st.steps.Cause(why) }

// Status returns the step's current status.
func (st *Step) Status() turnstone.Status { return st.res.Status }

// Finish masks the step's result and returns its report.
func (st *Step) Finish() turnstone.StepReport {
	st.hintImage()
	st.scrub()
	return st.steps.report(st.at)
}

func exitNote(end *wire.StepEnd) string {
	var notes []string
	e := end.Exit
	if e.Signal != "" {
		notes = append(notes, "ended by "+brief.Line(e.Signal))
	}
	if e.OOMKilled {
		notes = append(notes,
			"out of memory: the sandbox's limit killed a process (more with memory:)")
	}
	if e.DiskFull {
		notes = append(notes, "the sandbox's disk is full (more with disk:)")
	}
	if end.StateLost {
		notes = append(notes, "its environment and directory are not carried over")
	}
	return strings.Join(notes, "; ")
}

// scrub removes secrets from the step's result. A program can print a value with an escape sequence
// in it, such as grep --color, which the receipt does not show: the output is then kept in the
// shown form, masked; an output that is too long for the receipt is not kept.
func (st *Step) scrub() {
	s, res := st.steps, st.res
	if s.opts.Secrets == nil {
		return
	}
	words := s.opts.Secrets.Written()
	res.Note = words.Mask(res.Note)
	maskAll(words, &res.Failures)
	maskAll(words, &res.Commands)
	maskAll(words, &res.CommandsNote)
	maskAll(words, res.Network)
	maskAll(words, s.networks[st.at])
	for i, o := range []*document.Output{&res.Stdout, &res.Stderr} {
		text, cut := o.Text()
		name := words.In(text)
		if name == "" {
			continue
		}
		c := s.outputs[st.at][i]
		if c.withhold(name); !cut {
			c.replace(words.Mask(text),
				"without escape sequences, because they split the secret "+name)
		}
		*o = c.finish()
	}
}
