// Package secret keeps the values of secrets out of stored data. A turn may read the values while
// it runs; its output is masked, and its results are searched for the values.
//
// The package finds only the exact value, and each longer line of a value with several lines;
// Written adds the forms that turn itself produces. A program that encodes a secret before printing
// it evades every mask.
package secret

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
)

// Limits of a secret's value in bytes. A shorter value would occur everywhere.
const (
	minValue = 4
	MaxValue = 64 << 10
	minLine  = 8 // minimum for a line of a value with several lines
)

// A Set holds the secrets of a turn. A nil Set is empty. It is safe for concurrent use.
type Set struct {
	env     []string // NAME=VALUE
	needles []needle // longest first
	find    *automaton
	marks   []string // the replacement of each needle

	written, hosts func() *Set
}

type needle struct {
	name  string
	value []byte
}

// New returns a Set of NAME=VALUE pairs. Its errors do not contain a value.
func New(pairs []string) (*Set, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	s := new(Set)
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		fail := func(format string, args ...any) error {
			return turnstone.Errorf("secret.new", turnstone.KindInvalid, "secret "+name,
				format, args...)
		}
		switch {
		case len(strings.TrimSpace(value)) < minValue:
			return nil, fail("its value has less than %d characters and could not be masked",
				minValue)
		case len(value) > MaxValue:
			return nil, fail("its value has more than %d bytes", MaxValue)
		case strings.ContainsRune(value, 0):
			return nil, fail("its value contains a NUL byte, which an environment cannot contain")
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
	s.seal()
	for _, name := range s.Names() {
		if in := s.In(name); in != "" {
			return nil, turnstone.Errorf("secret.new", turnstone.KindInvalid, "secret "+in,
				"its value is part of the name of a secret, and names are kept").
				WithHint("give the secret another name")
		}
	}
	return s, nil
}

// seal completes s after all needles are added.
func (s *Set) seal() {
	slices.SortStableFunc(s.needles, func(a, b needle) int { return len(b.value) - len(a.value) })
	s.find = newAutomaton(s.needles)
	s.marks = make([]string, len(s.needles))
	for i, n := range s.needles {
		// the last is shorter than any value
		for _, m := range []string{"[secret " + n.name + "]", "[hidden]", "***"} {
			if s.marks[i] = m; s.In(m) == "" {
				break
			}
		}
	}
	s.written = sync.OnceValue(func() *Set {
		w := s.with(writtenForms)
		w.written = func() *Set { return w } // nothing is written
		return w
	})
	s.hosts = sync.OnceValue(func() *Set {
		return s.with(func(v string) []string {
			return []string{strings.ToLower(v)}
		})
	})
}

// armor reports whether a line is the first or last line of a key file (RFC 7468). All keys of a
// kind share these lines, so they would match other keys.
func armor(line string) bool {
	return (strings.HasPrefix(line, "-----BEGIN ") || strings.HasPrefix(line, "-----END ")) &&
		strings.HasSuffix(line, "-----")
}

// With returns a Set that also masks and finds values under the given name that no step gets. It
// ignores values of less than minValue bytes. s may be nil and is unchanged.
func (s *Set) With(name string, values ...string) *Set {
	more := new(Set)
	if s != nil {
		more.env, more.needles = slices.Clone(s.env), slices.Clone(s.needles)
	}
	for _, v := range values {
		if v = strings.TrimSpace(v); len(v) >= minValue {
			more.add(name, v)
		}
	}
	if len(more.needles) == 0 {
		return s
	}
	more.seal()
	return more
}

func (s *Set) add(name, value string) {
	s.needles = append(s.needles, needle{name, []byte(value)})
}

// Names returns the names in their original order.
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

// In returns the name of a secret whose value is in text, or "".
func (s *Set) In(text string) string {
	if s == nil {
		return ""
	}
	c := Scanner{set: s}
	_, _ = c.Write([]byte(text))
	return c.found
}

// Beyond returns the name of a secret whose value is in text but not in own, which may contain a
// value by chance, or "".
func (s *Set) Beyond(text, own []byte) string {
	if s == nil {
		return ""
	}
	for _, n := range s.needles {
		if bytes.Contains(text, n.value) && !bytes.Contains(own, n.value) {
			return n.name
		}
	}
	return ""
}

// Strip returns the variables that are neither secrets nor contain a secret's value in a form of
// Written, and the names of the removed variables.
func (s *Set) Strip(env []string) (kept, dropped []string) {
	if s == nil {
		return env, nil
	}
	names, written := s.Names(), s.Written()
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case slices.Contains(names, name):
		case written.In(kv) != "":
			dropped = append(dropped, name)
		default:
			kept = append(kept, kv)
		}
	}
	return kept, dropped
}

// ErrFound is the cause of an error about a value that would have been stored.
var ErrFound = errors.New("holds the value of a secret")
