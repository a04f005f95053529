package corpus

import (
	"testing"

	"turnstone.dev/turnstone"
)

// TestMachineCorpusSeeded runs the corpus three times, two of them on a busy host.
func TestMachineCorpusSeeded(t *testing.T) {
	r := newRunner(t, turnstone.TierSeeded)
	for _, g := range groups(t) {
		t.Run(g.Name, func(t *testing.T) { r.identical(t, g, turnstone.TierSeeded) })
	}
}
