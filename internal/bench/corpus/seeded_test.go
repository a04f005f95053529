package corpus

import (
	"testing"

	"turnstone.dev/turnstone"
)

// TestMachineCorpusSeeded runs the corpus twice on a busy host, and in a full run once more on a quiet one.
//
//testrun:full
func TestMachineCorpusSeeded(t *testing.T) {
	r := newRunner(t, turnstone.TierSeeded)
	for _, g := range groups(t) {
		t.Run(g.Name, func(t *testing.T) { r.identical(t, g, turnstone.TierSeeded) })
	}
}
