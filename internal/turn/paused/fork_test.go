package paused

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// TestNamesOfLiveForks checks that names which read as a turn, a session or a path are rejected.
func TestNamesOfLiveForks(t *testing.T) {
	p, h := newPast(t)
	p.Turn(p.Session("s"), "main")
	for _, name := range []string{"turn-7", "7", "t_x", "s_x", "a//b", "a/../b", "../x", "x.lock"} {
		_, err := ForkLive(t.Context(), h, "s@1", name)
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHeldPaths checks that no two branches have the same file, and that all files are in the
// folder for them.
func TestHeldPaths(t *testing.T) {
	_, x := newPast(t)
	name := rapid.StringMatching(`[a-z0-9._/-]{1,12}`).Filter(
		func(s string) bool { return turnstone.CheckName(turnstone.NameOfBranch, s) == nil })
	id := turnstone.NewSessionID()
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		if pa, pb := pathOf(x.Dir, id, a), pathOf(x.Dir, id, b); (pa == pb) != (a == b) ||
			filepath.Dir(pa) != x.Dir.Path("machines") || len(filepath.Base(pa)) > 200 {
			t.Fatalf("%q: %s, %q: %s", a, pa, b, pb)
		}
	})
	if n := len(filepath.Base(pathOf(x.Dir, id, strings.Repeat("a/", 49)+"aa"))); n > 200 {
		t.Errorf("%d bytes", n)
	}
}
