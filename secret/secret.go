// Package secret keeps the values of secrets out of what is kept. A turn may see
// them while it runs; what it prints is masked, and what it leaves behind is
// searched for them.
//
// Only the value as it is, and each longer line of one of several lines, is found:
// a program that encodes a secret before it prints it gets it past every mask.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
)

// Limits of a secret's value, in bytes. A shorter one would be found everywhere.
const (
	MinValue = 4
	MaxValue = 64 << 10
	minLine  = 8 // of a line of a value that has several
)

// A Set is the secrets of one turn. A nil Set has none. It is safe for concurrent use.
type Set struct {
	env     []string // NAME=VALUE
	needles []needle // longest first
}

type needle struct {
	name  string
	value []byte
}

// New makes a Set of NAME=VALUE pairs. Its errors do not hold a value.
func New(pairs []string) (*Set, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	s := new(Set)
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		fail := func(format string, args ...any) error {
			return &turnstone.Error{Op: "secret.new", Kind: turnstone.Invalid, Subject: "secret " + name, Err: fmt.Errorf(format, args...)}
		}
		switch {
		case len(strings.TrimSpace(value)) < MinValue:
			return nil, fail("its value has less than %d characters, and could not be masked", MinValue)
		case len(value) > MaxValue:
			return nil, fail("its value has more than %d bytes", MaxValue)
		case strings.ContainsRune(value, 0):
			return nil, fail("its value holds a NUL, which no environment can")
		case slices.Contains(s.Names(), name):
			return nil, fail("is given twice")
		}
		s.env = append(s.env, p)
		s.add(name, strings.TrimSpace(value))
		if lines := strings.Split(value, "\n"); len(lines) > 1 {
			for _, line := range lines {
				if line = strings.TrimSpace(line); len(line) >= minLine && !armor(line) {
					s.add(name, line)
				}
			}
		}
	}
	slices.SortStableFunc(s.needles, func(a, b needle) int { return len(b.value) - len(a.value) })
	return s, nil
}

// armor tells whether a line is the first or last of a key in a file (RFC 7468), which
// all keys of a kind have: taken for the value, it would be found in others.
func armor(line string) bool {
	return (strings.HasPrefix(line, "-----BEGIN ") || strings.HasPrefix(line, "-----END ")) && strings.HasSuffix(line, "-----")
}

// With returns a Set that also masks and finds values which no step is given; they are
// called name. Values of less than MinValue bytes are left out. s may be nil, and stays
// as it is.
func (s *Set) With(name string, values ...string) *Set {
	more := new(Set)
	if s != nil {
		more.env, more.needles = slices.Clone(s.env), slices.Clone(s.needles)
	}
	for _, v := range values {
		if v = strings.TrimSpace(v); len(v) >= MinValue {
			more.add(name, v)
		}
	}
	if len(more.needles) == 0 {
		return s
	}
	slices.SortStableFunc(more.needles, func(a, b needle) int { return len(b.value) - len(a.value) })
	return more
}

func (s *Set) add(name, value string) {
	s.needles = append(s.needles, needle{name, []byte(value)})
}

// Names returns the names, in the order in which they were given.
func (s *Set) Names() []string {
	if s == nil {
		return nil
	}
	var names []string
	for _, kv := range s.env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	return names
}

// Env returns NAME=VALUE for the sandbox's environment.
func (s *Set) Env() []string {
	if s == nil {
		return nil
	}
	return slices.Clone(s.env)
}

// mark stands in the place of a value.
func mark(name string) string { return "[secret " + name + "]" }

// next returns where the first needle begins in b, and which one; the longest of
// several at one place.
func (s *Set) next(b []byte) (at int, found *needle) {
	at = len(b)
	for i := range s.needles {
		n := &s.needles[i]
		if k := bytes.Index(b[:min(len(b), at+len(n.value))], n.value); k >= 0 && (found == nil || k < at) {
			at, found = k, n
		}
	}
	return at, found
}

// In returns the name of a secret whose value is in text, or "".
func (s *Set) In(text string) string {
	if s == nil {
		return ""
	}
	if _, n := s.next([]byte(text)); n != nil {
		return n.name
	}
	return ""
}

// Mask returns text with every value replaced by its secret's name.
func (s *Set) Mask(text string) string {
	if s == nil || s.In(text) == "" {
		return text
	}
	var b bytes.Buffer
	w := s.Writer(&b)
	_, _ = w.Write([]byte(text)) // a buffer takes everything
	_ = w.Close()
	return b.String()
}

// MaskCut is Mask for a text that may have been cut off at its end: it also replaces
// there what may be the beginning of a value.
func (s *Set) MaskCut(text string) string {
	if s == nil {
		return text
	}
	text = s.Mask(text)
	n := s.beginning([]byte(text))
	if n < MinValue {
		return text
	}
	for i := range s.needles {
		if bytes.HasPrefix(s.needles[i].value, []byte(text[len(text)-n:])) {
			return text[:len(text)-n] + mark(s.needles[i].name)
		}
	}
	return text
}

// Strip returns the variables that are none of the secrets
// and hold no value of one, and the names of the others that it left out.
func (s *Set) Strip(env []string) (kept, dropped []string) {
	if s == nil {
		return env, nil
	}
	names := s.Names()
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case slices.Contains(names, name):
		case s.In(kv) != "":
			dropped = append(dropped, name)
		default:
			kept = append(kept, kv)
		}
	}
	return kept, dropped
}

// Writer returns a writer that masks what goes through it to w. It holds back
// only what may be the beginning of a value; Close writes that. It is used by one
// goroutine at a time.
func (s *Set) Writer(w io.Writer) io.WriteCloser {
	if s == nil {
		return plain{w}
	}
	return &masker{set: s, w: w}
}

type plain struct{ io.Writer }

func (plain) Close() error { return nil }

type masker struct {
	set  *Set
	w    io.Writer
	held []byte
}

// Write implements io.Writer.
func (m *masker) Write(p []byte) (int, error) {
	b := p
	if len(m.held) > 0 {
		b = append(m.held, p...)
	}
	for {
		at, n := m.set.next(b)
		if n == nil || len(b)-m.set.beginning(b) <= at {
			break // or a longer value, which is not all there, begins here or before
		}
		if err := m.write(b[:at], []byte(mark(n.name))); err != nil {
			return 0, err
		}
		b = b[at+len(n.value):]
	}
	keep := m.set.beginning(b)
	if err := m.write(b[:len(b)-keep]); err != nil {
		return 0, err
	}
	m.held = append([]byte(nil), b[len(b)-keep:]...)
	return len(p), nil
}

// beginning returns the length of the longest end of b that is the beginning of a
// value, and not all of it.
func (s *Set) beginning(b []byte) int {
	best := 0
	for i := range s.needles {
		v := s.needles[i].value
		for at := max(0, len(b)-len(v)+1); at < len(b)-best; at++ {
			k := bytes.IndexByte(b[at:], v[0])
			if k < 0 {
				break
			}
			if at += k; bytes.HasPrefix(v, b[at:]) {
				best = max(best, len(b)-at)
				break
			}
		}
	}
	return best
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

// Close writes what was held back; it does not close the writer below.
func (m *masker) Close() error {
	b := m.held
	m.held = nil
	for {
		at, n := m.set.next(b)
		if n == nil {
			return m.write(b)
		}
		if err := m.write(b[:at], []byte(mark(n.name))); err != nil {
			return err
		}
		b = b[at+len(n.value):]
	}
}

// Scanner returns a writer that looks for values in what is written to it.
func (s *Set) Scanner() *Scanner { return &Scanner{set: s} }

// A Scanner finds values in a stream. It is used by one goroutine at a time.
type Scanner struct {
	set   *Set
	held  []byte
	found string
}

// Write implements io.Writer; it never fails.
func (c *Scanner) Write(p []byte) (int, error) {
	if c.set == nil || c.found != "" {
		return len(p), nil
	}
	if _, n := c.set.next(p); n != nil {
		c.found, c.held = n.name, nil
		return len(p), nil
	}
	// A value across the border of two writes.
	longest := len(c.set.needles[0].value)
	joined := append(c.held, p[:min(len(p), longest)]...)
	if _, n := c.set.next(joined); n != nil {
		c.found, c.held = n.name, nil
		return len(p), nil
	}
	tail := p
	if len(p) < longest {
		tail = joined
	}
	c.held = append([]byte(nil), tail[len(tail)-c.set.beginning(tail):]...)
	return len(p), nil
}

// Found returns the name of the first secret that was found, or "".
func (c *Scanner) Found() string { return c.found }

// ErrFound is the cause of an error about a value that something would have kept.
var ErrFound = errors.New("holds the value of a secret")
