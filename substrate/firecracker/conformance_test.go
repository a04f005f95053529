package firecracker

import (
	"testing"

	"turnstone.dev/turnstone/network"
	"turnstone.dev/turnstone/substrate/qemu"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// TestConformance runs wherever there is a Firecracker and a guest really starts under
// KVM.
func TestConformance(t *testing.T) {
	s, m := started(t)
	substratetest.Run(t, s, substratetest.Config{Machine: m, MakeHome: qemu.MakeHome,
		Network: wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway, DNS: []string{network.DNS}}})
}
