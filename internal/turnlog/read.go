package turnlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// An Observer gets the progress that a journal has: see executor.Observer.
type Observer interface {
	Preparing(what string)
	StepStarted(step *document.Step)
	StepOutput(step *document.Step, stream turnstone.Stream, p []byte)
	StepFinished(step *document.Step, report turnstone.StepReport)
}

// A Reader reads a journal, which is untrusted: its writer may be another than it says. It is used
// by one goroutine at a time.
type Reader struct {
	doc    *document.Document
	obs    Observer
	report []byte
	offset int64
	result *turnstone.TurnReport
	failed error
	ended  bool
	most   int // bytes of a line
}

// NewReader returns a reader of the journal of a turn of doc. obs may be nil.
func NewReader(doc *document.Document, obs Observer) *Reader {
	return &Reader{doc: doc, obs: obs, most: MaxLine}
}

// Offset returns the number of bytes of whole lines that were read: where a next reading starts.
func (r *Reader) Offset() int64 { return r.offset }

// Result returns what the journal's end says: the turn's report, which is nil if nothing was
// started, and its error. ok is false before the end.
func (r *Reader) Result() (report *turnstone.TurnReport, err error, ok bool) {
	return r.result, r.failed, r.ended
}

// Read reads the lines of in, from Offset on, until the journal's end or the end of in, which may
// be in the middle of a line. The error is that of in, or of kind KindIntegrity if the lines are no
// journal.
func (r *Reader) Read(in io.Reader) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	for !r.ended {
		text, err := readLine(lines, r.most)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			return broken(r.offset, err)
		}
		if err := r.take(l); err != nil {
			return broken(r.offset, err)
		}
		r.offset += int64(len(text))
	}
	return nil
}

// readLine returns the next whole line, or io.EOF.
func readLine(in *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, broken(0, fmt.Errorf("a line is longer than %d bytes", most))
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func broken(at int64, err error) error {
	return turnstone.NewError("turn.journal", turnstone.KindIntegrity, fmt.Sprintf("byte %d", at),
		err).WithHint("the server is not one of this version, or somebody changed its answer")
}

// take passes a line on.
func (r *Reader) take(l Line) error {
	if len(l.Report) == 0 && l.End == nil {
		r.report = nil // its writer died before the end, and another continues
	}
	switch {
	case l.Preparing != "":
		if r.obs != nil {
			r.obs.Preparing(l.Preparing)
		}
		return nil
	case l.Started != 0:
		step, err := r.step(l.Started)
		if err == nil && r.obs != nil {
			r.obs.StepStarted(step)
		}
		return err
	case l.Output != nil:
		return r.output(l.Output)
	case l.Finished != nil:
		step, err := r.step(l.Finished.Step)
		if err == nil && r.obs != nil {
			r.obs.StepFinished(step, l.Finished.Report)
		}
		return err
	case len(l.Report) > 0:
		if len(r.report)+len(l.Report) > maxReport {
			return fmt.Errorf("the report is larger than %d bytes", maxReport)
		}
		r.report = append(r.report, l.Report...)
		return nil
	case l.End != nil:
		return r.end(l.End)
	}
	return errors.New("a line says nothing")
}

func (r *Reader) step(index int) (*document.Step, error) {
	if index < 1 || index > len(r.doc.Steps) {
		return nil, fmt.Errorf("the document has no step %d", index)
	}
	return r.doc.Steps[index-1], nil
}

func (r *Reader) output(o *Output) error {
	step, err := r.step(o.Step)
	switch {
	case err != nil:
		return err
	case o.Stream != turnstone.Stdout && o.Stream != turnstone.Stderr:
		return fmt.Errorf("a step has no stream %d", o.Stream)
	case r.obs == nil:
	case o.Omitted > 0:
		r.obs.Preparing(fmt.Sprintf("%s: %s of its output are not shown; the receipt "+
			"has its part of them", step.Name, turnstone.Bytes(o.Omitted).Human()))
	default:
		r.obs.StepOutput(step, o.Stream, o.Data)
	}
	return nil
}

func (r *Reader) end(e *End) error {
	if len(r.report) > 0 {
		dec := json.NewDecoder(bytes.NewReader(r.report))
		r.result = new(turnstone.TurnReport)
		if err := dec.Decode(r.result); err != nil {
			r.result = nil
			return err
		}
		r.result.Kind = e.Kind
		r.result.Duration = time.Duration(r.result.Millis) * time.Millisecond
		r.report = nil
	}
	if r.result == nil && e.Error == nil {
		return errors.New("the turn has neither a report nor an error")
	}
	r.failed, r.ended = e.Error.err(), true
	return nil
}

// Scan reads a journal and reports whether it has its end, and the size of its whole lines.
func Scan(in io.Reader) (ended bool, size int64, err error) {
	lines := bufio.NewReaderSize(in, 64<<10)
	for {
		text, err := readLine(lines, MaxLine)
		if errors.Is(err, io.EOF) {
			return ended, size, nil
		}
		if err != nil {
			return ended, size, err
		}
		var l struct {
			End *End `json:"end"`
		}
		if err := json.Unmarshal(text, &l); err != nil {
			return ended, size, nil // the disk was full, or the machine stopped
		}
		ended, size = l.End != nil, size+int64(len(text))
	}
}
