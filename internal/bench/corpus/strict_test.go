package corpus

import (
	"maps"
	"slices"
	"testing"

	"turnstone.dev/turnstone"
)

// strictly has the programs that the tests run under the strict tier, where each takes many times
// longer. The benchmark runs all.
var strictly = map[string][]string{
	"go":    {"go-maps", "go-clock", "go-select", "go-race"},
	"races": {"race-threads", "race-xargs"},
}

// TestMachineCorpusStrict runs some programs twice on a busy host, and in a full run once more on a quiet one.
//
//testrun:full
func TestMachineCorpusStrict(t *testing.T) {
	r := newRunner(t, turnstone.TierStrict)
	all := groups(t)
	for _, name := range slices.Sorted(maps.Keys(strictly)) {
		i := slices.IndexFunc(all, func(g Group) bool { return g.Name == name })
		if i < 0 {
			t.Fatalf("there is no group %s", name)
		}
		g, err := all[i].Select(strictly[name]...)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { r.identical(t, g, turnstone.TierStrict) })
	}
}
