package main

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// TestMoreDeterministic: the hint for runs that differ names no flag that the next run refuses.
func TestMoreDeterministic(t *testing.T) {
	seeded := &turnstone.Determinism{Tier: turnstone.TierSeeded}
	for _, c := range []struct {
		turn      turnstone.TurnReport
		substrate string
		want      string
	}{
		{turnstone.TurnReport{}, "", "--deterministic"},
		{turnstone.TurnReport{Determinism: seeded}, "auto", "--tier strict"},
		{turnstone.TurnReport{Determinism: seeded}, "gvisor", "--tier strict --substrate qemu"},
		{turnstone.TurnReport{Determinism: seeded, ID: "t_x",
			Network: &turnstone.RecordNetwork{Replayed: "t_y"}}, "", "turn bisect t_x"},
		{turnstone.TurnReport{Determinism: &turnstone.Determinism{Tier: turnstone.TierStrict}}, "",
			"timeout"},
	} {
		cmd := runCmd{}
		cmd.Substrate = c.substrate
		hint := cmd.moreDeterministic(&c.turn)
		if !strings.Contains(hint, c.want) {
			t.Errorf("%q, want %q", hint, c.want)
		}
		replays := c.turn.Network != nil
		if replays && strings.Contains(hint, "--tier strict") && !strings.Contains(hint, "off") {
			t.Errorf("%q with a recording", hint)
		}
	}
}
