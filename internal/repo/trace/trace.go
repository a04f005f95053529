// Package trace encodes and decodes the traces of turns that are kept: which commands ran, with
// their times, exit codes and outputs. docs/trace.md specifies the format.
package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// Format is the version of the encoding.
const Format = 1

// Bounds of a trace. A writer leaves commands out, and counts them; a reader rejects more.
const (
	MaxCommands = 200_000
	MaxBytes    = 64 << 20
	maxSteps    = 1000
	maxLine     = 1 << 20
)

// A Writer writes a trace: Begin, then for each step Step and its commands, then End.
type Writer struct {
	w     io.Writer
	buf   bytes.Buffer
	bytes int64
	steps int64 // bytes of the lines of steps
	end   turnstone.TraceEnd
}

// Begin writes the head of a trace to w.
func Begin(w io.Writer, head turnstone.TraceHead) (*Writer, error) {
	head.Format = Format
	t := &Writer{w: w}
	return t, t.line(turnstone.TraceLine{Turn: &head})
}

// The lines of steps have at most reserve bytes together, which commands leave free: each has at
// most largeStep bytes while the steps before have less than half of it, then smallStep bytes.
const (
	reserve   = 16 << 20
	largeStep = 64 << 10
	smallStep = 7 << 10
	maxNote   = 1000 // bytes of a step's note
)

// Step writes a step and those of its commands that are within the bounds. It counts the others in
// the step's LeftOut.
func (t *Writer) Step(s turnstone.TraceStep, commands []turnstone.CommandReport) error {
	fits := t.fitting(commands)
	s.LeftOut += int64(len(commands) - fits)
	s.Commands = max(s.Commands, int64(len(commands)))
	before := t.bytes
	if err := t.line(turnstone.TraceLine{Step: t.shorten(s)}); err != nil {
		return err
	}
	t.steps += t.bytes - before
	t.end.Steps++
	t.end.LeftOut += s.LeftOut
	for i := range commands[:fits] {
		if err := t.line(turnstone.TraceLine{Command: &commands[i]}); err != nil {
			return err
		}
		t.end.Commands++
	}
	return nil
}

// shorten removes connections, then refusals, until the step's line is within its bound.
func (t *Writer) shorten(s turnstone.TraceStep) *turnstone.TraceStep {
	most := int64(largeStep)
	if t.steps > reserve/2 {
		most = smallStep
	}
	s.Note, s.Untraced = brief.Clip(s.Note, maxNote), brief.Clip(s.Untraced, maxNote)
	for {
		var size countingWriter
		_ = json.NewEncoder(&size).Encode(turnstone.TraceLine{Step: &s})
		switch {
		case size.n <= most:
			return &s
		case len(s.Connections) > 0:
			s.Connections = s.Connections[:len(s.Connections)/2]
		case s.Network != nil && len(s.Network.Refused) > 0:
			n := *s.Network
			for _, r := range n.Refused[len(n.Refused)/2:] {
				n.MoreRefused += r.Count
			}
			n.Refused = n.Refused[:len(n.Refused)/2]
			s.Network = &n
		default:
			return &s
		}
	}
}

// fitting returns how many of a step's commands are within the bounds.
func (t *Writer) fitting(commands []turnstone.CommandReport) int {
	most := min(int64(len(commands)), MaxCommands-t.end.Commands)
	var size countingWriter
	enc := json.NewEncoder(&size)
	for i := range int(most) {
		before := size.n
		if enc.Encode(turnstone.TraceLine{Command: &commands[i]}) != nil ||
			size.n-before > maxLine || t.bytes+size.n > MaxBytes-reserve {
			return i
		}
	}
	return int(most)
}

// A countingWriter counts bytes.
type countingWriter struct{ n int64 }

func (c *countingWriter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// End writes the last line.
func (t *Writer) End() error { return t.line(turnstone.TraceLine{End: &t.end}) }

// line writes one line.
func (t *Writer) line(l turnstone.TraceLine) error {
	t.buf.Reset()
	if err := json.NewEncoder(&t.buf).Encode(l); err != nil {
		return err
	}
	if bytes.Contains(t.buf.Bytes(), []byte(`\ufffd`)) {
		// The encoder spells an invalid byte differently from the character that replaces it.
		var valid turnstone.TraceLine
		if err := json.Unmarshal(t.buf.Bytes(), &valid); err != nil {
			return err
		}
		t.buf.Reset()
		if err := json.NewEncoder(&t.buf).Encode(valid); err != nil {
			return err
		}
	}
	if t.bytes+int64(t.buf.Len()) > MaxBytes || t.buf.Len() > maxLine {
		return turnstone.Errorf("trace.write", turnstone.KindExhausted, "the trace",
			"has a line of %d bytes after %d", t.buf.Len(), t.bytes)
	}
	n, err := t.w.Write(t.buf.Bytes())
	t.bytes += int64(n)
	return err
}

// Read decodes an untrusted trace and calls each for every line, in order. An error of the trace is
// of kind Integrity; an error of each is returned unchanged.
func Read(r io.Reader, each func(l turnstone.TraceLine) error) error {
	in := bufio.NewReaderSize(io.LimitReader(r, MaxBytes+1), 64<<10)
	d := decoder{}
	for {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) && len(line) == 0 {
			if !d.ended {
				return damaged("it ends before its last line")
			}
			return nil
		}
		if err != nil {
			var known *turnstone.Error
			if errors.As(err, &known) {
				return err
			}
			return damaged("line %d: %w", d.lines+1, err)
		}
		l, err := d.line(line)
		if err != nil {
			return damaged("line %d: %w", d.lines, err)
		}
		if err := each(l); err != nil {
			return err
		}
	}
}

// readLine returns the next line with its line feed.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, fmt.Errorf("it has more than %d bytes", maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, errors.New("it is cut off")
		}
		return line, err
	}
}

// A decoder checks the order of a trace's lines.
type decoder struct {
	lines int
	bytes int64
	begun bool
	ended bool
	got   turnstone.TraceEnd
}

func (d *decoder) line(b []byte) (l turnstone.TraceLine, err error) {
	d.lines++
	if d.bytes += int64(len(b)); d.bytes > MaxBytes {
		return l, fmt.Errorf("the trace has more than %d bytes", MaxBytes)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return l, err
	}
	// One spelling for each line: duplicate keys and white space have no effect that differs
	// between readers.
	var again bytes.Buffer
	if err := json.NewEncoder(&again).Encode(l); err != nil {
		return l, err
	}
	if !bytes.Equal(again.Bytes(), b) {
		return l, errors.New("it is not spelled as turn writes it")
	}
	return l, d.check(l)
}

// check reports a line that is out of place.
func (d *decoder) check(l turnstone.TraceLine) error {
	set := 0
	for _, is := range []bool{l.Turn != nil, l.Step != nil, l.Command != nil, l.End != nil} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return errors.New("it does not have exactly one part")
	case d.ended:
		return errors.New("it follows the last line")
	case (l.Turn != nil) == d.begun:
		return errors.New("the head is not the first line, or is there twice")
	case l.Turn != nil && l.Turn.Format != Format:
		return fmt.Errorf("the trace has format %d; this program supports %d", l.Turn.Format,
			Format)
	case l.Step != nil && (l.Step.Index != d.got.Steps+1 || l.Step.Index > maxSteps):
		return fmt.Errorf("step %d follows step %d", l.Step.Index, d.got.Steps)
	case l.Command != nil && (d.got.Steps == 0 || d.got.Commands == MaxCommands):
		return errors.New("a command without a step, or too many commands")
	case l.End != nil && *l.End != d.got:
		return fmt.Errorf("it counts %+v lines, and there are %+v", *l.End, d.got)
	}
	d.begun, d.ended = true, l.End != nil
	if l.Step != nil {
		d.got.Steps++
		d.got.LeftOut += l.Step.LeftOut
	}
	if l.Command != nil {
		d.got.Commands++
	}
	return nil
}

func damaged(format string, args ...any) error {
	return turnstone.Errorf("trace.read", turnstone.KindIntegrity, "the trace", format, args...).
		WithHint("list all damage with turn fsck")
}
