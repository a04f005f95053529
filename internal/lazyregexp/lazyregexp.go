// Package lazyregexp compiles the regular expressions of package variables at their first use, like
// the package of this name in Go's source. Most processes use few of the expressions, and compiling
// all of them takes longer than the rest of a program's start.
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// A Regexp is a regular expression that is compiled at its first use. Its methods are those of
// regexp.Regexp, and are safe for concurrent use.
type Regexp struct{ compiled func() *regexp.Regexp }

// New returns a Regexp for a pattern. In tests, New compiles the pattern, so that an invalid
// pattern panics there and not at its first use.
func New(pattern string) *Regexp {
	r := &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })}
	if len(os.Args) > 0 && strings.HasSuffix(os.Args[0], ".test") {
		r.compiled()
	}
	return r
}

// Match reports whether b has a match.
func (r *Regexp) Match(b []byte) bool { return r.compiled().Match(b) }

// MatchString reports whether s has a match.
func (r *Regexp) MatchString(s string) bool { return r.compiled().MatchString(s) }

// FindSubmatch returns the first match in b and its groups.
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.compiled().FindSubmatch(b) }

// FindStringSubmatch returns the first match in s and its groups.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }

// FindAllStringSubmatch returns up to n matches in s and their groups; all if n is negative.
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.compiled().FindAllStringSubmatch(s, n)
}

// FindAll returns up to n matches in b; all if n is negative.
func (r *Regexp) FindAll(b []byte, n int) [][]byte { return r.compiled().FindAll(b, n) }

// FindIndex returns the position of the first match in b, or nil.
func (r *Regexp) FindIndex(b []byte) []int { return r.compiled().FindIndex(b) }
