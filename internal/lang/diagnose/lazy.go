package diagnose

import (
	"regexp"
	"sync"
)

// lazy compiles a pattern when it is used first: most processes use none of them, and
// all of them together take longer than the rest of a program's start.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
