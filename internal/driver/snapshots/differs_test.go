package snapshots

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// TestDiffers checks that the first changed part is named, with its old value as printable text.
func TestDiffers(t *testing.T) {
	shape, more := turnstone.DefaultShape(), turnstone.DefaultShape()
	more.CPUs = 2
	digest, other := turnstone.DigestBytes([]byte("a")), turnstone.DigestBytes([]byte("b"))
	for _, tt := range []struct {
		same  bool
		parts []Part
		want  string
	}{
		{true, []Part{{What: "x", Was: "a", Now: "b"}}, ""},
		{false, nil, "version of turn"},
		{false, []Part{{What: "x", Was: "a", Now: "a"}, {What: "y", Was: "\x1b[2J", Now: "b"},
			{What: "z", Now: "c"}}, "y (?[2J, now b)"},
		{false, []Part{{What: "CPU", Was: "a", Now: "b", Bare: true}}, "CPU"},
		{false, []Part{Shapes(shape, shape), Agents(digest, digest), Roots(digest, digest)},
			"version of turn"},
		{false, []Part{Shapes(shape, more)},
			"shape (1 CPUs, 1.0 GiB of memory, 4.0 GiB of disk, network true; now 2 CPUs, 1.0 " +
				"GiB of memory, 4.0 GiB of disk, network true)"},
		{false, []Part{Agents(digest, other)}, "version of turn: its agent (" + digest.Short() +
			", now " + other.Short() + ")"},
	} {
		if got := Differs(tt.same, tt.parts...); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	if got := Differs(false, Part{What: "x", Was: strings.Repeat("a", 1000), Now: "b"}); len(
		got) > 200 {
		t.Errorf("%d bytes", len(got))
	}
}
