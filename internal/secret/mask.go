package secret

import (
	"bytes"
	"io"
)

// Mask returns text with every value replaced by its secret's name. It removes every byte of
// overlapping values.
func (s *Set) Mask(text string) string { return s.mask(text, false) }

// MaskCut is Mask for a text that may be truncated: at the end it also replaces a possible prefix
// of a value of at least minValue bytes.
func (s *Set) MaskCut(text string) string { return s.mask(text, true) }

func (s *Set) mask(text string, cut bool) string {
	if s == nil || !cut && s.In(text) == "" {
		return text
	}
	var b bytes.Buffer
	m := &masker{set: s, w: &b}
	_, _ = m.Write([]byte(text)) // a buffer accepts everything
	_ = m.end(cut)
	return b.String()
}

// Writer returns a writer that masks its input and writes it to w. It holds back only a possible
// prefix of a value; Close writes the rest. The output does not depend on the division of the input
// into writes. Only one goroutine at a time may use it.
func (s *Set) Writer(w io.Writer) io.WriteCloser {
	if s == nil {
		return plain{w}
	}
	return &masker{set: s, w: w}
}

type plain struct{ io.Writer }

func (plain) Close() error { return nil }

// A masker replaces the union of all values by the names of those values that are not inside
// another value, in the order of their beginnings.
type masker struct {
	set   *Set
	w     io.Writer
	state int32
	held  []byte // the end of the text: a possible prefix of a value
	// values that begin in held and are not inside another value, ordered by beginning and thus by
	// end
	spans   []span
	covered int    // bytes of held that belong to a value whose mark is written
	last    string // the mark that was written last
}

// A span is a value in held.
type span struct {
	begin, end int
	value      int32
}

// Write implements io.Writer.
func (m *masker) Write(p []byte) (int, error) {
	b, old := p, len(m.held)
	if old > 0 {
		m.held = append(m.held, p...)
		b = m.held
	}
	a := m.set.find
	m.state = a.walk(m.state, p, func(end int, value int32) bool {
		m.add(span{old + end - len(a.needles[value].value), old + end, value})
		return true
	})
	// Everything before the state's text is decided.
	if err := m.decide(b, len(b)-int(a.nodes[m.state].depth)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// add adds a span that ends after all others.
func (m *masker) add(s span) {
	for len(m.spans) > 0 && m.spans[len(m.spans)-1].begin >= s.begin {
		m.spans = m.spans[:len(m.spans)-1] // the last span is inside s
	}
	m.spans = append(m.spans, s)
}

// decide writes the output for b up to offset to, and holds the rest back.
func (m *masker) decide(b []byte, to int) error {
	at, done := m.covered, 0
	for ; done < len(m.spans) && m.spans[done].begin < to; done++ {
		s := m.spans[done]
		mark := m.set.marks[s.value]
		if s.begin >= at {
			if err := m.write(b[at:s.begin], []byte(mark)); err != nil {
				return err
			}
		} else if mark != m.last { // the spans overlap
			if err := m.write([]byte(mark)); err != nil {
				return err
			}
		}
		at, m.last = s.end, mark
	}
	if at < to {
		if err := m.write(b[at:to]); err != nil {
			return err
		}
	}
	m.covered = max(0, at-to)
	m.held = append(m.held[:0], b[to:]...)
	m.spans = append(m.spans[:0], m.spans[done:]...)
	for i := range m.spans {
		m.spans[i].begin, m.spans[i].end = m.spans[i].begin-to, m.spans[i].end-to
	}
	return nil
}

func (m *masker) write(parts ...[]byte) error {
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		if _, err := m.w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// Close writes the held bytes; it does not close the writer below.
func (m *masker) Close() error { return m.end(false) }

// end is Close. With cut, the held bytes count as a truncated value.
func (m *masker) end(cut bool) error {
	if n := m.set.find.nodes[m.state]; cut && n.depth >= minValue {
		m.add(span{len(m.held) - int(n.depth), len(m.held), n.through})
	}
	m.state = start
	return m.decide(m.held, len(m.held))
}

// Scanner returns a writer that searches its input for values.
func (s *Set) Scanner() *Scanner { return &Scanner{set: s} }

// A Scanner finds values in a stream. Only one goroutine at a time may use it.
type Scanner struct {
	set   *Set
	state int32
	found string
}

// Write implements io.Writer; it never fails.
func (c *Scanner) Write(p []byte) (int, error) {
	if c.set == nil || c.found != "" {
		return len(p), nil
	}
	a := c.set.find
	c.state = a.walk(c.state, p, func(_ int, value int32) bool {
		c.found = a.needles[value].name
		return false
	})
	return len(p), nil
}

// Found returns the name of the first secret found, or "".
func (c *Scanner) Found() string { return c.found }
