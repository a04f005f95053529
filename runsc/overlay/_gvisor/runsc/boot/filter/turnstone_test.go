// This file is added by Turnstone's build.

package filter

import (
	"math/rand"
	"reflect"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// TestTurnstoneFilter: the filter that the build has compiled is, instruction by
// instruction, the one that would be compiled as a sandbox starts, whatever the numbers
// are that are known only then.
func TestTurnstoneFilter(t *testing.T) {
	opt, err := config.TurnstoneOptions()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		opt.ControllerFD = uint32(rand.Intn(1 << 20))
		precompiled, ok := GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Fatalf("there is none for %s", opt.ConfigKey())
		}
		got, err := precompiled.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		allowed, denied := config.Rules(opt)
		program := &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: denied}, {Rules: allowed, Action: seccomp.Allow}},
			Options:  config.SeccompOptions(opt),
		}
		want, _, err := program.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(bpf.ToBytecode(got), bpf.ToBytecode(want)) {
			t.Fatalf("with control server %d the filters differ: %d and %d instructions", opt.ControllerFD, len(got), len(want))
		}
	}
}
