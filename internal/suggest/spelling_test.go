package suggest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	known := []string{"image", "timeout", "memory"}
	for word, want := range map[string]struct {
		nearest string
		edits   int
	}{
		"image": {"image", 0}, "IMAGE": {"image", 0}, "imgae": {"image", 2},
		"timout": {"timeout", 1}, "": {"image", 5},
		"memory" + strings.Repeat("y", 1<<20): {"memory", 58},
	} {
		if got, edits := Nearest(word, known); got != want.nearest || edits != want.edits {
			t.Errorf("%.20q: %s by %d edits, want %s by %d", word, got,
				edits, want.nearest, want.edits)
		}
	}
	if got, _ := Nearest("x", nil); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

// TestDistance: the distance is a metric, and an edit changes it by at most one.
func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-c]{0,8}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if d := distance(a, b); d != distance(b, a) || (d == 0) != (a == b) ||
			distance(a, c) > d+distance(b, c) {
			t.Fatalf("%q to %q is %d", a, b, d)
		}
		if distance(a, a+"x") != 1 {
			t.Fatalf("%q with one letter more", a)
		}
	})
}
