package diagnose

import (
	"regexp"
	"sync"
)

// lazy compiles a pattern on first use: most processes use none of the patterns, and compiling all
// of them takes longer than the rest of a program's start.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
