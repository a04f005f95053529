package receipt

import (
	"bytes"
	"os"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/lang/diagnose"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

// commands are the data about a step's commands after its end.
type commands struct {
	script   *syntax.Script
	report   *trace.Report
	reports  []turnstone.CommandReport
	failures []turnstone.FailureReport
	shown    []document.CommandFailure
	table    []document.CommandRow
	note     string
	zero     time.Time // the guest's time 0 of the step, by the host's clock
}

// maxFailures bounds the failing commands that are analyzed. A receipt shows shownFailures of them.
const (
	maxFailures   = 20
	shownFailures = 5
)

// maxExits bounds the exit codes of one row, which are those of a pipeline's stages: 16 are
// printed, and one more shows that there are others.
const maxExits = 17

// analyse determines the results of a step's commands, and their places in the document; with
// table, for each of them.
func (s *scripts) analyse(step *document.Step, end *wire.StepEnd, records []wire.ShellRecord,
	stderr *capture, dir string, table bool) *commands {
	c := &commands{script: s.script(step), report: trace.FromWire(records, &end.ShellFinishedEvent)}
	s.ran(step, end.Path, dir)
	trace.Resolve(c.script, c.report)
	maskReport(s.secrets, c.report) // the original words: below they are cut and folded
	for i := range c.report.Records {
		c.reports = append(c.reports, s.command(step, c.script, &c.report.Records[i]))
	}
	if table {
		c.table, c.note = s.table(step, c.script, c.report)
	}
	if end.Exit.ExitCode != 0 {
		s.failures(step, c, int(end.Exit.ExitCode), stderr)
	}
	// Escape sequences are removed from a message first, because they may split a value.
	maskAll(s.secrets, &c.failures)
	maskAll(s.secrets, &c.shown)
	return c
}

func (s *scripts) command(step *document.Step, script *syntax.Script,
	r *trace.Record) turnstone.CommandReport {
	w := r.ToWire(script)
	rep := turnstone.CommandReport{ID: r.ID, Parent: r.Parent, Kind: string(r.Kind),
		Language: w.Language, Text: r.Words, Stage: int(w.Stage),
		Start: turnstone.Millis(r.Start), Duration: turnstone.Millis(r.Duration), Flags: w.Flags}
	if cmd := commandOf(script, r.Command); cmd != nil {
		at := s.place(step, cmd.Span)
		rep.Place, rep.Span = &at,
			&turnstone.Range{From: int64(cmd.Span.Start), To: int64(cmd.Span.End)}
		rep.Text = sourceText(script, cmd.Span)
	}
	if r.Flags.Exited {
		code := r.Exit
		rep.ExitCode = &code
	}
	if w.Stdin != nil && w.Stdin.Kind != wire.ShellStdinKind(trace.Inherited) {
		rep.Stdin = &turnstone.InputInfo{Kind: string(w.Stdin.Kind), Text: string(w.Stdin.Data),
			Bytes: w.Stdin.Size, Digest: turnstone.Digest(w.Stdin.Digest)}
	}
	if r.Stdout.Known {
		rep.Stdout = &turnstone.Range{From: r.Stdout.Start, To: r.Stdout.End}
	}
	if r.Stderr.Known {
		rep.Stderr = &turnstone.Range{From: r.Stderr.Start, To: r.Stderr.End}
	}
	return rep
}

func commandOf(script *syntax.Script, i int) *syntax.Command {
	if i < 0 || i >= len(script.Commands) {
		return nil
	}
	return &script.Commands[i]
}

// maxText bounds the source of a command in reports.
const maxText = 4 << 10

func sourceText(script *syntax.Script, span syntax.Span) string {
	text := script.Source[span.Start:max(span.Start, min(span.End, len(script.Source)))]
	if len(text) > maxText {
		text = append(bytes.Clone(text[:maxText]), "…"...)
	}
	return string(bytes.ToValidUTF8(text, []byte("\uFFFD")))
}

// table returns one row for each command that ran, in the document's order.
func (s *scripts) table(step *document.Step, script *syntax.Script,
	rep *trace.Report) (rows []document.CommandRow, note string) {
	note = rep.Untraced
	last := lastRuns(rep)
	for i := range rep.Sites {
		site := &rep.Sites[i]
		row := document.CommandRow{Text: site.Words, Language: "bash", Duration: site.Time,
			Count: site.Count}
		if site.Kind != syntax.KindSimple && site.Kind != syntax.KindPipeline &&
			site.Kind != syntax.KindArithmetic && site.Kind != syntax.KindTest {
			continue // the commands inside it have rows
		}
		if cmd := commandOf(script, site.Command); cmd != nil {
			row.Line, row.Language, row.Text = s.place(step, cmd.Span).Line, cmd.Language,
				sourceText(script, cmd.Span)
		}
		if row.Text == "" {
			continue // a pipeline outside the document: its stages have rows
		}
		row.ExitCodes = last.exits(rep, site.ID)
		row.OutputBytes = -1
		if n, known := last.output[site.ID]; known {
			row.OutputBytes = n
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b document.CommandRow) int { return a.Line - b.Line })
	if rows == nil {
		rows = []document.CommandRow{}
	}
	return rows, note
}

// runs index a report's records.
type runs struct {
	last   map[int]int   // from a site to its last record's index
	output map[int]int64 // bytes that all of a site's records wrote, if known
	stages map[int][]int // from a pipeline's record ID to its stages' indexes
}

func lastRuns(rep *trace.Report) runs {
	x := runs{map[int]int{}, map[int]int64{}, map[int][]int{}}
	for i := range rep.Records {
		r := &rep.Records[i]
		x.last[r.Site] = i
		for _, out := range []trace.Range{r.Stdout, r.Stderr} {
			if out.Known {
				x.output[r.Site] += out.End - out.Start
			}
		}
		if r.Flags.PipeIn || r.Flags.PipeOut {
			x.stages[r.Parent] = append(x.stages[r.Parent], i)
		}
	}
	return x
}

func (x runs) exits(rep *trace.Report, site int) []int {
	i, ok := x.last[site]
	if !ok {
		return nil
	}
	var codes []int
	for _, stage := range x.stages[rep.Records[i].ID] {
		if len(codes) == maxExits {
			break
		}
		if r := &rep.Records[stage]; r.Flags.Exited {
			codes = append(codes, r.Exit)
		}
	}
	if r := &rep.Records[i]; codes == nil && r.Flags.Exited {
		codes = []int{r.Exit}
	}
	return codes
}

// failures finds the failed commands, and their messages. Without records the step as a whole
// failed.
func (s *scripts) failures(step *document.Step, c *commands, exit int, stderr *capture) {
	d := s.diagnoser()
	failing := failingRecords(c.script, c.report)
	if len(failing) > maxFailures {
		failing = failing[len(failing)-maxFailures:]
	}
	for _, r := range failing {
		var said []byte
		if r.Stderr.Known {
			said = stderr.part(r.Stderr.Start, r.Stderr.End)
		} else {
			said = stderr.part(0, stderr.size)
		}
		found := d.Find(step.Index-1,
			diagnose.Failure{Command: r.Command, ExitCode: r.Exit, Stderr: said})
		if hasDouble(c.script, r.Command) {
			found = nil // stages run concurrently: the message may come from another stage
		}
		s.addFailure(step, c, found, r)
	}
	if n := len(c.shown); n > shownFailures {
		// The last failure ended the step: it must not be among those that are only counted.
		c.shown = append(c.shown[n-1:n:n], c.shown[:n-1]...)
	}
	if len(failing) > 0 {
		return
	}
	found := d.Find(step.Index-1,
		diagnose.Failure{Command: -1, ExitCode: exit, Stderr: stderr.part(0, stderr.size)})
	if len(found) > 0 {
		s.addFailure(step, c, found,
			&trace.Record{Command: enclosing(c.script, found[0]), Parent: -1, Exit: exit})
	}
}

// hasDouble reports whether another stage of the command's pipeline starts the same program.
func hasDouble(script *syntax.Script, i int) bool {
	cmd := commandOf(script, i)
	if cmd == nil || cmd.Stage == 0 {
		return false
	}
	for j := range script.Commands {
		other := &script.Commands[j]
		if j != i && other.Stage > 0 && other.Parent == cmd.Parent && other.Program == cmd.Program {
			return true
		}
	}
	return false
}

// enclosing returns the innermost command around a finding, or -1.
func enclosing(script *syntax.Script, f diagnose.Finding) int {
	best := -1
	for i := range script.Commands {
		if span := script.Commands[i].Span; span.Start <= f.Span.Start && f.Span.Start <= span.End {
			best = i
		}
	}
	return best
}

// failingRecords returns the runs that failed by themselves: the innermost ones, except those whose
// exit status the script checks.
func failingRecords(script *syntax.Script, rep *trace.Report) []*trace.Record {
	blamed := map[int]bool{} // runs that failed because a run inside them failed
	tested := map[int]bool{}
	var failing []*trace.Record
	for i := range rep.Records { // parents come first
		r := &rep.Records[i]
		cmd := commandOf(script, r.Command)
		tested[r.ID] = tested[r.Parent] || r.Flags.Negated || cmd != nil && cmd.Tested
	}
	for i := len(rep.Records) - 1; i >= 0; i-- {
		r := &rep.Records[i]
		if !r.Flags.Exited || r.Exit == 0 || tested[r.ID] || r.Flags.Async {
			continue
		}
		blamed[r.Parent] = true
		if !blamed[r.ID] {
			failing = append(failing, r)
		}
	}
	slices.Reverse(failing)
	return failing
}

// callOf returns the script's command that ran what is not in the script itself, such as what eval, an alias or a
// sourced file consists of, or nil.
func callOf(c *commands, r *trace.Record) *syntax.Command {
	if c.report == nil {
		return nil
	}
	at := r.Parent
	for i := len(c.report.Records) - 1; i >= 0; i-- { // parents come first
		if p := &c.report.Records[i]; p.ID == at {
			if cmd := commandOf(c.script, p.Command); cmd != nil {
				return cmd
			}
			at = p.Parent
		}
	}
	return nil
}

func (s *scripts) addFailure(step *document.Step, c *commands, found []diagnose.Finding,
	r *trace.Record) {
	rep := turnstone.FailureReport{Text: r.Words, ExitCode: r.Exit}
	shown := document.CommandFailure{Text: r.Words, ExitCode: r.Exit}
	cmd, called := commandOf(c.script, r.Command), false
	if cmd == nil {
		cmd, called = callOf(c, r), true
	}
	if cmd != nil {
		at := s.place(step, cmd.Span)
		if rep.Place = &at; !called {
			rep.Text = sourceText(c.script, cmd.Span)
		}
		shown.Line, shown.Column, shown.EndLine, shown.EndColumn, shown.Text = at.Line, at.Column,
			at.EndLine, at.EndColumn, rep.Text
		shown.Excerpt = s.doc.SourceLine(at.Line, at.Column, at.EndLine, at.EndColumn)
	}
	if len(found) > 0 {
		f := found[0]
		where := s.doc.Steps[f.Step]
		at := s.place(where, f.Span)
		rep.Fault, rep.Tool, rep.Message = &at, f.Tool, f.Message
		shown.Tool, shown.Message = f.Tool, f.Message
		shown.Excerpt = s.doc.SourceLine(at.Line, at.Column, at.EndLine, at.EndColumn)
		for _, frame := range f.Frames {
			rep.Frames = append(rep.Frames, s.place(s.doc.Steps[frame.Step], frame.Span).Line)
		}
	}
	c.failures = append(c.failures, rep)
	c.shown = append(c.shown, shown)
}

// part returns the bytes of the stream from one offset to another, as far as they were kept; of
// more than 64 KiB the last. finish must have been called.
func (c *capture) part(from, to int64) []byte {
	to = min(to, c.size)
	from = max(from, to-diagnose.MaxStderr, 0)
	if from >= to {
		return nil
	}
	if to <= int64(len(c.head)) {
		return c.head[from:to]
	}
	if start := c.size - int64(len(c.tail)); from >= start {
		return c.tail[from-start : to-start]
	}
	if c.size == int64(len(c.head)+len(c.tail)) {
		return append(bytes.Clone(c.head), c.tail...)[from:to]
	}
	if c.note != "" || c.path == "" {
		return nil
	}
	f, err := os.Open(c.path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, to-from)
	n, _ := f.ReadAt(b, from)
	return b[:n]
}
