package firecracker

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/network"
	"turnstone.dev/turnstone/substrate/qemu"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// TestConformance runs wherever there is a Firecracker and a guest really starts under
// KVM.
func TestConformance(t *testing.T) {
	h := turntest.Home(t)
	if _, _, err := Find(t.Context(), h, Options{}); err != nil {
		t.Skipf("%v (%s)", err, turnstone.HintOf(err))
	}
	m := turntest.Machine(t, h, "base")
	s, err := New(t.Context(), h, Options{Probe: &m, Progress: func(what string) { t.Log(what) }})
	if err != nil {
		t.Skipf("%v (%s)", err, turnstone.HintOf(err))
	}
	substratetest.Run(t, s, substratetest.Config{Machine: m, MakeHome: qemu.MakeHome,
		Network: wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway, DNS: []string{network.DNS}}})
}
