package terminal

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Text returns text as f can show it: unchanged, unless f is a terminal. It is for text that is
// read, not watched, such as a receipt.
func Text(f *os.File, text string) string { return marked(f, text, false) }

// Patch is Text for a patch, which must show every change.
func Patch(f *os.File, text string) string { return marked(f, text, true) }

func marked(f *os.File, text string, escapes bool) string {
	if s := markerFor(f, escapes); s != nil {
		return string(s.text([]byte(text)))
	}
	return text
}

// Copy copies in to f: unchanged, unless f is a terminal.
func Copy(f *os.File, in io.Reader) error {
	s := markerFor(f, false)
	if s == nil {
		_, err := io.Copy(f, in)
		return err
	}
	_, err := io.Copy(cleanWriter{s, f}, in)
	if _, lerr := f.Write(s.last()); err == nil {
		err = lerr
	}
	return err
}

// markerFor returns the marker of text for f: none unless f is a terminal.
func markerFor(f *os.File, escapes bool) *sanitizer {
	if !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return newMarker(styleOf(f, false).colors, escapes)
}

// cleanWriter makes its input harmless for a terminal.
type cleanWriter struct {
	s *sanitizer
	w io.Writer
}

// Cleaner returns a writer that makes its input harmless for a terminal, without colors.
func Cleaner(w io.Writer) io.Writer { return cleanWriter{newSanitizer(false), w} }

func (c cleanWriter) Write(p []byte) (int, error) {
	if _, err := c.w.Write(c.s.clean(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// A sink forwards a command's output. If that fails there is no reader, and fail is called.
type sink struct {
	file     *os.File
	progress *Progress
	clean    *sanitizer // nil: the output is unchanged
	fail     context.CancelCauseFunc
}

// NewSink returns a sink that writes to f; what is written to a terminal is sanitized. It ends the
// live line of p, which shares the terminal; p may be nil.
func NewSink(f *os.File, p *Progress, fail context.CancelCauseFunc) *sink {
	s := NewRawSink(f, fail)
	s.progress = p
	if term.IsTerminal(int(f.Fd())) {
		s.clean = newSanitizer(styleOf(f, false).colors)
	}
	return s
}

// NewRawSink returns a sink for a command that controls the terminal f.
func NewRawSink(f *os.File, fail context.CancelCauseFunc) *sink {
	return &sink{file: f, fail: fail}
}

// Write implements io.Writer.
func (s *sink) Write(b []byte) (int, error) {
	if s.progress != nil {
		s.progress.Settle()
	}
	text := b
	if s.clean != nil {
		text = s.clean.clean(b)
	}
	if _, err := s.file.Write(text); err != nil {
		s.fail(fmt.Errorf("writing the command's output: %w", err))
		return 0, err
	}
	return len(b), nil
}
