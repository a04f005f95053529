package syntax

import (
	"slices"
	"testing"
)

func TestTested(t *testing.T) {
	src := "if a; b; then c; elif d; then e; fi\nwhile f; do g; done\nh && i || j\n! k\nl | m\n! " +
		"{ n; o; }\nif p && q; then r || s; fi\n(t)\n"
	var tested []string
	for _, c := range Parse([]byte(src)).Commands {
		if c.Kind == KindSimple && c.Tested {
			tested = append(tested, c.Program)
		}
	}
	if want := []string{"a", "b", "d", "f", "h", "i", "k", "n", "o", "p", "q",
		"r"}; !slices.Equal(tested, want) {
		t.Errorf("%q, want %q", tested, want)
	}
}
