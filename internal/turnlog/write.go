package turnlog

import (
	"encoding/json"
	"io"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/hostpath"
)

// A Writer writes a journal. It is an observer of a turn, and safe for concurrent use. After an
// error of its writer it writes nothing more: the turn continues.
type Writer struct {
	mu      sync.Mutex
	w       io.Writer
	err     error
	ended   bool
	left    int64              // bytes of output that may follow
	omitted map[omission]int64 // bytes that were left out of a running step
	paths   *hostpath.Hider    // of the host's paths in messages and errors; nil: they stay
}

type omission struct {
	step   int
	stream turnstone.Stream
}

// NewWriter returns a writer of a journal to w. Each line is one call of w.Write.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, left: MaxOutput, omitted: make(map[omission]int64)}
}

// Hide makes the writer hide the host's paths in messages and errors. It is called before all else.
func (w *Writer) Hide(paths *hostpath.Hider) { w.paths = paths }

func (w *Writer) line(l Line) {
	if w.err != nil || w.ended {
		return
	}
	text, err := json.Marshal(l)
	if err == nil {
		_, err = w.w.Write(append(text, '\n'))
	}
	w.err = err
}

func (w *Writer) write(l Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line(l)
}

// Preparing writes a line of text for people.
func (w *Writer) Preparing(what string) {
	if what != "" {
		w.write(Line{Preparing: w.paths.Text(what)})
	}
}

// StepStarted writes that a step starts.
func (w *Writer) StepStarted(step *document.Step) { w.write(Line{Started: step.Index}) }

// StepOutput writes output of a step.
func (w *Writer) StepOutput(step *document.Step, stream turnstone.Stream, p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 && w.left > 0 {
		part := p[:min(int64(len(p)), w.left, chunk)]
		w.left -= int64(len(part))
		w.line(Line{Output: &Output{Step: step.Index, Stream: stream, Data: part}})
		p = p[len(part):]
	}
	if len(p) > 0 {
		w.omitted[omission{step.Index, stream}] += int64(len(p))
	}
}

// StepFinished writes the end of a step.
func (w *Writer) StepFinished(step *document.Step, report turnstone.StepReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, stream := range []turnstone.Stream{turnstone.Stdout, turnstone.Stderr} {
		if n := w.omitted[omission{step.Index, stream}]; n > 0 {
			w.line(Line{Output: &Output{Step: step.Index, Stream: stream, Omitted: n}})
		}
	}
	clear(w.omitted)
	w.line(Line{Finished: &Finished{Step: step.Index, Report: report}})
}

// End writes the result of the turn, report and err, and returns the error of the journal itself.
// Nothing is written after it.
func (w *Writer) End(report *turnstone.TurnReport, err error) error {
	end := &End{Error: errorOf(w.paths.Error(err))}
	var text []byte
	if report != nil {
		end.Kind = report.Kind
		if text, err = json.Marshal(report); err != nil {
			return err
		}
	}
	return w.finish(text, end)
}

// finish writes the report's JSON in parts, and the last line.
func (w *Writer) finish(text []byte, end *End) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(text) > 0 {
		part := text[:min(len(text), chunk)]
		w.line(Line{Report: part})
		text = text[len(part):]
	}
	w.line(Line{End: end})
	w.ended = true
	return w.err
}
