// Package receipt creates a turn's receipt from the results of its steps. It takes their outputs,
// finds the failed commands and their places in the document, and keeps secrets out of all of it.
package receipt

import (
	"errors"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/hostpath"
	"turnstone.dev/turnstone/internal/secret"
)

// Options describe the turn of Steps.
type Options struct {
	Document *document.Document
	Secrets  *secret.Set // masked in all of the guest's data; nil: none
	Cwd      string      // the first step's directory
	Commands bool        // the receipt lists all commands of each step

	// Dir is the folder for outputs that are too long for the receipt, and Shown is its name in the
	// receipt. With an empty Dir they are not kept.
	Dir, Shown string
	// Paths hides the host's paths in texts about the turn; nil: they stay.
	Paths *hostpath.Hider
	Limit int64        // bytes of one output in Dir
	Floor config.Space // free space to leave on the disk of Dir

	// Image returns an image with a program that the turn's image lacks, or "", for the note of a
	// step that did not find the program. It may be nil. The guest chooses the program's name.
	Image func(program string) string
	// Output is called with each piece of a step's output, masked. It may be nil.
	Output func(step *document.Step, stream turnstone.Stream, p []byte)
}

// Steps are a document's steps and their results. One goroutine at a time uses them, except for the
// writers of Step.Begin.
type Steps struct {
	opts    Options
	doc     *document.Document
	results []document.StepResult

	outputs  [][2]*capture // by step: standard output and error
	began    []time.Time   // by step; zero for a step that did not run
	ended    [][]turnstone.ConnectionReport
	scripts  *scripts
	commands []*commands                // by step; nil for a step that did not run
	networks []*turnstone.NetworkReport // by step; nil for a step without network activity
	totals   turnstone.NetworkTotals    // at the end of the last step
	cwd      string                     // the next step's directory
	restored int                        // the number of results that Restore has set
}

// New returns the steps of a document before the first has run.
func New(opts Options) *Steps {
	n := len(opts.Document.Steps)
	s := &Steps{opts: opts, doc: opts.Document, cwd: opts.Cwd,
		results: make([]document.StepResult, n),
		outputs: make([][2]*capture, n), commands: make([]*commands, n),
		began: make([]time.Time, n), ended: make([][]turnstone.ConnectionReport, n),
		networks: make([]*turnstone.NetworkReport, n)}
	for i := range s.results {
		s.results[i] = document.StepResult{Status: turnstone.StepSkipped, Note: "not reached"}
	}
	s.scripts = parseScripts(opts.Document, opts.Secrets.Written())
	return s
}

// Skip sets the note of a step that does not run.
func (s *Steps) Skip(step *document.Step, why string) { s.results[step.Index-1].Note = why }

// Result returns the result of a step.
func (s *Steps) Result(step *document.Step) document.StepResult { return s.results[step.Index-1] }

// AddToTimeout adds to the note of the last step that timed out, if there is one.
func (s *Steps) AddToTimeout(note string) {
	for i := len(s.results) - 1; i >= 0; i-- {
		if res := &s.results[i]; res.Status == turnstone.StepTimeout {
			res.Note += "; " + note
			return
		}
	}
}

// Open opens the whole output of a step and returns its size in bytes. It returns nil for an empty
// output, and for an output that was too long or contained a secret, and is not kept.
func (s *Steps) Open(step *document.Step, stream turnstone.Stream) (io.ReadCloser, int64, error) {
	c := s.outputs[step.Index-1][stream-turnstone.Stdout]
	if c == nil || c.size == 0 {
		return nil, 0, nil
	}
	in, err := c.whole()
	return in, c.size, err
}

// Sync makes the outputs in Options.Dir durable.
func (s *Steps) Sync() error {
	var errs []error
	for _, step := range s.outputs {
		for _, c := range step {
			if c != nil {
				errs = append(errs, c.sync())
			}
		}
	}
	return errors.Join(errs...)
}

// Receipt returns the current receipt. If it still contains the value of a secret that turn's own
// words do not contain, all results of the steps are replaced by a note, here and in later reports,
// and info's error and network are masked.
func (s *Steps) Receipt(info *document.TurnInfo) []byte {
	text := s.doc.Receipt(*info, s.results)
	if s.opts.Secrets == nil {
		return text
	}
	words := s.opts.Secrets.Written()
	name := words.In(string(text))
	if name == "" {
		return text
	}
	bare, results := *info, make([]document.StepResult, len(s.results))
	for i := range results {
		results[i] = blankResult(s.results[i])
	}
	bare.Error, bare.Network = blank(bare.Error), blank(bare.Network)
	if name = words.Beyond(text, s.doc.Receipt(bare, results)); name == "" {
		return text
	}
	for i := range s.results {
		res := &s.results[i]
		*res = document.StepResult{Status: res.Status, ExitCode: res.ExitCode,
			Duration: res.Duration,
			Note:     "what it did is not kept, because the receipt would hold the secret " + name}
		s.commands[i], s.networks[i], s.outputs[i], s.ended[i] = nil, nil, [2]*capture{}, nil
	}
	info.Error, info.Network = s.Line(info.Error), s.Line(info.Network)
	return s.doc.Receipt(*info, s.results)
}

// Reports returns the report of each step.
func (s *Steps) Reports() []turnstone.StepReport {
	all := []turnstone.StepReport{}
	for i := range s.results {
		all = append(all, s.report(i))
	}
	return all
}

func (s *Steps) report(i int) turnstone.StepReport {
	step, res := s.doc.Steps[i], &s.results[i]
	rep := turnstone.StepReport{Name: step.Name, Line: step.Line, Status: res.Status,
		ExitCode: res.ExitCode,
		Millis:   res.Duration.Milliseconds(), Note: res.Note, Network: s.networks[i]}
	rep.Stdout, rep.StdoutInfo = describe(res.Stdout)
	rep.Stderr, rep.StderrInfo = describe(res.Stderr)
	if c := s.commands[i]; c != nil {
		rep.Commands, rep.Failures = c.reports, c.failures
		rep.CommandCount = max(c.report.Commands, int64(len(c.reports)))
		rep.CommandsDropped, rep.Untraced = c.report.Dropped, c.report.Untraced
	}
	return rep
}

func describe(o document.Output) (string, turnstone.OutputInfo) {
	text, cut := o.Text()
	return text, turnstone.OutputInfo{Bytes: o.Size, Digest: o.Digest, Truncated: cut, File: o.File}
}

// Line masks secrets, hides the host's paths, and folds text to one line.
func (s *Steps) Line(text string) string {
	return brief.Line(s.opts.Secrets.Written().Mask(s.opts.Paths.Text(text)))
}

// Cause is Line of what an error says, without the paths that the error names.
func (s *Steps) Cause(err error) string { return s.Line(s.opts.Paths.Error(err).Error()) }
