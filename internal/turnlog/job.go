package turnlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// A Step describes a step to a reader that does not have its document.
type Step struct {
	Index    int    `json:"index"`
	Name     string `json:"name"`
	Line     int    `json:"line"`
	Language string `json:"language"`
}

// Bounds of the description of a step.
const (
	maxSteps    = 100_000
	maxStepName = 1000
)

// An Item is a result before the end, such as the comparison of one turn of many.
type Item struct {
	Value json.RawMessage  `json:"value"`
	Kinds []turnstone.Kind `json:"kinds,omitempty"` // see End.Kinds
}

// A JobWriter writes the journal of an operation that runs documents or builds templates: the lines
// of a turn's journal, a description of each step before the step starts, and items. Its report is
// any value. It is safe for concurrent use.
type JobWriter struct {
	*Writer
	mu    sync.Mutex
	steps map[*document.Step]int // numbers of described steps
}

// NewJobWriter returns a writer of a journal to w. Each line is one call of w.Write.
func NewJobWriter(w io.Writer) *JobWriter {
	return &JobWriter{Writer: NewWriter(w), steps: make(map[*document.Step]int)}
}

// numbered calls f with step with its number in the journal for an index, because several documents
// may run. It calls f for no step beyond the limit.
func (w *JobWriter) numbered(step *document.Step, f func(*document.Step)) {
	w.mu.Lock()
	n, ok := w.steps[step]
	if !ok && len(w.steps) < maxSteps {
		n = len(w.steps) + 1
		w.steps[step] = n
		w.write(Line{Step: &Step{Index: step.Index, Line: step.Line, Language: step.Language,
			Name: step.Name[:min(len(step.Name), maxStepName)]}})
	}
	w.mu.Unlock()
	if n > 0 {
		f(&document.Step{Index: n})
	}
}

// StepStarted writes that a step starts.
func (w *JobWriter) StepStarted(step *document.Step) { w.numbered(step, w.Writer.StepStarted) }

// StepOutput writes output of a step.
func (w *JobWriter) StepOutput(step *document.Step, stream turnstone.Stream, p []byte) {
	w.numbered(step, func(s *document.Step) { w.Writer.StepOutput(s, stream, p) })
}

// StepFinished writes the end of a step.
func (w *JobWriter) StepFinished(step *document.Step, report turnstone.StepReport) {
	w.numbered(step, func(s *document.Step) { w.Writer.StepFinished(s, report) })
}

// Item writes a result before the end.
func (w *JobWriter) Item(v any) {
	text, err := json.Marshal(v)
	if err == nil {
		w.write(Line{Item: &Item{Value: text, Kinds: kinds(v)}})
	}
}

// End writes the report, which may be nil, and the error, and returns the error of the journal
// itself. Nothing is written after it.
func (w *JobWriter) End(report any, err error) error {
	end := &End{Error: errorOf(w.paths.Error(err)), Kinds: kinds(report)}
	text, merr := json.Marshal(report)
	if merr != nil {
		return merr
	}
	if string(text) == "null" {
		text = nil
	}
	return w.finish(text, end)
}

// kinds returns the kinds of errors of the turns in a report, in their order: JSON does not have
// them.
func kinds(report any) (all []turnstone.Kind) {
	has := false
	for _, t := range turnsOf(report) {
		all = append(all, t.Kind)
		has = has || t.Kind != ""
	}
	if !has {
		return nil
	}
	return all
}

// turnsOf returns the turns in a report, in the order in which it has them.
func turnsOf(report any) (all []*turnstone.TurnReport) {
	add := func(t *turnstone.TurnReport) {
		if t != nil {
			all = append(all, t)
		}
	}
	switch r := report.(type) {
	case *turnstone.ReplayReport:
		if r != nil {
			add(r.Turn)
		}
	case *turnstone.FrozenReport:
		if r != nil {
			add(r.Turn)
		}
	case *turnstone.RangeReport:
		if r != nil {
			for _, one := range r.Turns {
				all = append(all, turnsOf(one)...)
			}
		}
	case *turnstone.BisectReport:
		if r != nil {
			all = turnsOf(r.Replay)
		}
	}
	return all
}

// restore sets what the JSON of a report does not have.
func restore(report any, kinds []turnstone.Kind) {
	for i, t := range turnsOf(report) {
		t.Duration = time.Duration(t.Millis) * time.Millisecond
		if i < len(kinds) {
			t.Kind = kinds[i]
		}
	}
}

// A JobReader reads the journal of an operation, which is untrusted. It is used by one goroutine.
type JobReader struct {
	r Reader
	// Item gets each result before the end. decode decodes it into a pointer to its type. It may be
	// nil.
	Item func(decode func(into any) error) error
	doc  document.Document // the described steps
	end  *End
}

// NewJobReader returns a reader that tells obs, which may be nil.
func NewJobReader(obs Observer) *JobReader {
	j := &JobReader{}
	j.r = Reader{doc: &j.doc, obs: obs, most: MaxLine}
	return j
}

// Read reads the journal until its end. The error is that of in, or of kind KindIntegrity if the
// lines are no journal, or of kind KindDead if in ends before.
func (j *JobReader) Read(in io.Reader) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	var at int64
	for j.end == nil {
		text, err := readLine(lines, j.r.most)
		if errors.Is(err, io.EOF) {
			return turnstone.Errorf("turn.journal", turnstone.KindDead, "the journal",
				"ended without a result").WithHint("try again")
		}
		if err != nil {
			return err
		}
		var l Line
		if err = json.Unmarshal(text, &l); err == nil {
			err = j.take(l)
		}
		if err != nil {
			return broken(at, err)
		}
		at += int64(len(text))
	}
	return nil
}

func (j *JobReader) take(l Line) error {
	switch {
	case l.Step != nil:
		if len(j.doc.Steps) >= maxSteps || len(l.Step.Name) > maxStepName {
			return errors.New("too many steps, or a name that is too long")
		}
		j.doc.Steps = append(j.doc.Steps, &document.Step{Index: l.Step.Index, Name: l.Step.Name,
			Line: l.Step.Line, Language: l.Step.Language})
		return nil
	case l.Item != nil:
		if j.Item == nil {
			return nil
		}
		return j.Item(func(into any) error {
			if err := json.Unmarshal(l.Item.Value, into); err != nil {
				return err
			}
			restore(into, l.Item.Kinds)
			return nil
		})
	case l.End != nil:
		j.end = l.End
		return nil
	}
	return j.r.take(l)
}

// Result decodes the report into a pointer to its type, and returns the operation's error. has is
// false if there is no report.
func (j *JobReader) Result(into any) (has bool, err error) {
	if len(j.r.report) == 0 {
		if j.end.Error == nil {
			return false, broken(0, errors.New("there is neither a report nor an error"))
		}
		return false, j.end.Error.err()
	}
	dec := json.NewDecoder(bytes.NewReader(j.r.report))
	if err := dec.Decode(into); err != nil {
		return false, broken(0, fmt.Errorf("the report: %w", err))
	}
	restore(into, j.end.Kinds)
	return true, j.end.Error.err()
}
