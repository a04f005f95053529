package receipt

import (
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/trace"
)

// WriteTrace writes the commands of all steps to w. Call it after Receipt, which may have removed
// what would hold a secret. A step whose commands still hold one has no commands in the trace.
func (s *Steps) WriteTrace(w io.Writer, head turnstone.TraceHead) error {
	t, err := trace.Begin(w, head)
	if err != nil {
		return err
	}
	for i := range s.results {
		step, ran := s.traceStep(i)
		if err := t.Step(step, ran); err != nil {
			return err
		}
	}
	return t.End()
}

// maxCount bounds a count that the guest reports, so that sums of counts do not overflow.
const maxCount = 1 << 50

// traceStep returns the step at i with the commands that the trace may contain.
func (s *Steps) traceStep(i int) (turnstone.TraceStep, []turnstone.CommandReport) {
	step, res := s.doc.Steps[i], &s.results[i]
	t := turnstone.TraceStep{Index: step.Index, Name: step.Name, Line: step.Line,
		Language: step.Language, Status: res.Status, ExitCode: res.ExitCode,
		Started: s.began[i].UTC().Truncate(time.Microsecond),
		Millis:  res.Duration.Milliseconds(), Note: res.Note, Network: s.networks[i],
		Connections: s.ended[i]}
	_, t.Stdout = describe(res.Stdout)
	_, t.Stderr = describe(res.Stderr)
	c := s.commands[i]
	if c == nil {
		return t, nil
	}
	// The guest reports the counts, and only the number of reports is certain.
	known := int64(len(c.reports))
	t.Commands = max(known, min(c.report.Commands, maxCount))
	t.LeftOut = max(t.Commands-known, min(c.report.Dropped, maxCount))
	t.Untraced = c.report.Untraced
	if !c.zero.IsZero() {
		t.Started = c.zero.UTC().Truncate(time.Microsecond)
	}
	ran := append([]turnstone.CommandReport(nil), c.reports...)
	if name := LeakIn(s.opts.Secrets.Written(), &traced{&t, ran}); name != "" {
		t = turnstone.TraceStep{Index: t.Index, Name: t.Name, Line: t.Line, Language: t.Language,
			Status: t.Status, ExitCode: t.ExitCode, Started: t.Started, Millis: t.Millis,
			Commands: t.Commands, LeftOut: t.Commands,
			Untraced: "the commands are not kept, because they would hold the secret " + name}
		ran = nil
	}
	return t, ran
}

// traced is what a trace has of a step.
type traced struct {
	Step *turnstone.TraceStep
	Ran  []turnstone.CommandReport
}
