package firecracker

import (
	"testing"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// TestConformance runs the conformance suite if there is a Firecracker and a guest really starts
// under KVM.
//
//testrun:kvm
func TestConformance(t *testing.T) {
	s, m := started(t)
	substratetest.Run(t, s, substratetest.Config{Machine: m, MakeHome: disk.MakeHome,
		Elsewhere: func(t *testing.T) substrate.Substrate {
			s, err := New(t.Context(), &statedir.Dir{Root: t.TempDir()},
				Options{Probe: &m, Progress: func(what string) { t.Log(what) }})
			check(t, err)
			return s
		},
		Network: wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
			DNS: []string{network.DNS}}})
}
