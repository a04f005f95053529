package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/ansi/parser"
)

// A sanitizer makes a sandbox's output safe for the user's terminal. A terminal obeys its input:
// OSC 52 writes the clipboard, OSC 0 the title, CSI moves the cursor over turn's own text, some
// sequences make the terminal answer as if the user had typed. Text, line ends, tabs and carriage
// returns pass, and colors (SGR) if requested; nothing else does. Invalid UTF-8 becomes U+FFFD.
//
// A sanitizer keeps its state between calls, so that it recognizes a split sequence, and holds at
// most a few KiB. It is not safe for concurrent use.
type sanitizer struct {
	marks     bool // see newMarker
	escapes   bool // sequences are marked too, and neither obeyed nor removed
	held      bool // a carriage return, before the next character is known
	sequences *ansi.Parser
	pending   []byte // the first bytes of an incomplete rune
	out       []byte
}

// maxParams bounds one sequence's parameters; the longest color has six.
const maxParams = 32

func newSanitizer(colors bool) *sanitizer {
	s := &sanitizer{sequences: ansi.NewParser()}
	s.sequences.SetParamsSize(maxParams)
	s.sequences.SetDataSize(1) // OSC and similar sequences are discarded, so their data is not kept
	h := ansi.Handler{Execute: s.control}
	if colors {
		h.HandleCsi = s.csi
	}
	s.sequences.SetHandler(h)
	return s
}

// newMarker is newSanitizer for text that is read, not watched: files, patches, receipts. A
// carriage return that ends no line would let a line hide its beginning, and is shown as ^M; other
// controls are shown similarly, and marks that reorder text by their number. With escapes the
// sequences are shown too, including colors, as a patch requires.
func newMarker(colors, escapes bool) *sanitizer {
	s := newSanitizer(colors)
	s.marks, s.escapes = true, escapes
	return s
}

// text is clean for a whole text.
func (s *sanitizer) text(text []byte) []byte {
	out := append([]byte(nil), s.clean(text)...)
	return append(out, s.last()...)
}

// last returns the text that clean has held back at the end.
func (s *sanitizer) last() []byte {
	s.out = s.out[:0]
	s.release()
	return s.out
}

// release shows a held carriage return, because no line end has followed.
func (s *sanitizer) release() {
	if s.held {
		s.held = false
		s.out = append(s.out, "^M"...)
	}
}

// clean returns the safe part of p. The result is valid until the next call.
func (s *sanitizer) clean(p []byte) []byte {
	s.out = s.out[:0]
	if len(s.pending) > 0 {
		p = append(s.pending, p...)
		s.pending = nil
	}
	for i := 0; i < len(p); {
		b := p[i]
		if b != '\n' {
			s.release()
		}
		switch {
		case b == ansi.ESC && s.escapes:
			s.control(b)
			i++
		case b == ansi.ESC || s.sequences.State() != parser.GroundState:
			s.sequences.Advance(b)
			i++
		case b >= 0x20 && b < 0x7f:
			s.out = append(s.out, b)
			i++
		case b < utf8.RuneSelf:
			s.control(b)
			i++
		case !utf8.FullRune(p[i:]):
			s.pending = append([]byte(nil), p[i:]...)
			i = len(p)
		default:
			r, size := utf8.DecodeRune(p[i:])
			if visible(r) {
				s.out = utf8.AppendRune(s.out, r)
			} else if s.marks {
				s.out = fmt.Appendf(s.out, "\\u%04x", r)
			}
			i += size
		}
	}
	return s.out
}

func (s *sanitizer) control(b byte) {
	switch {
	case b == '\n' && s.held:
		s.held = false
		s.out = append(s.out, "\r\n"...)
	case b == '\r' && s.marks:
		s.release()
		s.held = true
	case b == '\n', b == '\r', b == '\t':
		s.out = append(s.out, b)
	case s.marks:
		s.out = append(s.out, '^', b^0x40)
	}
}

// csi passes colors on, and drops every other control sequence.
func (s *sanitizer) csi(cmd ansi.Cmd, params ansi.Params) {
	if cmd.Final() != 'm' || cmd.Prefix() != 0 || cmd.Intermediate() != 0 {
		return
	}
	sgr := []byte("\x1b[")
	for i, p := range params {
		v := p.Param(0)
		if v < 0 || v > 255 {
			return
		}
		sgr = strconv.AppendInt(sgr, int64(v), 10)
		switch {
		case i == len(params)-1:
		case p.HasMore():
			sgr = append(sgr, ':')
		default:
			sgr = append(sgr, ';')
		}
	}
	s.out = append(append(s.out, sgr...), 'm')
}

// visible reports whether r shows only itself: no C1 control, and none of the marks that reorder
// the text around them (CVE-2021-42574).
func visible(r rune) bool {
	bidi := unicode.Is(unicode.Bidi_Control, r)
	return !unicode.IsControl(r) && !bidi && r != '\u2028' && r != '\u2029'
}

// Printable is clean for one short text that must not move the cursor or end the line, such as an
// error message that quotes a sandbox.
func Printable(text string) string {
	out := []rune{}
	for _, r := range text {
		switch {
		case visible(r):
			out = append(out, r)
		case r == '\t' || r == '\r' || r == '\n':
			out = append(out, ' ')
		}
	}
	return string(out)
}

// Name returns a file's name, or another word of a sandbox, on one line: unchanged, or quoted like
// a string in Go if it contains invisible characters, or looks like a quoted name.
func Name(name string) string {
	hidden := func(r rune) bool { return !visible(r) }
	if !utf8.ValidString(name) || strings.HasPrefix(name, `"`) ||
		strings.ContainsFunc(name, hidden) {
		return strconv.Quote(name)
	}
	return name
}
