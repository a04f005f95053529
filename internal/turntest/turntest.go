// Package turntest gives tests the shared home in which one built template and
// one snapshot serve all of them.
package turntest

import (
	"os"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/testhome"
	"turnstone.dev/turnstone/substrate"
)

// Home returns the home that tests share; see testhome.
func Home(t testing.TB) *statedir.Dir {
	t.Helper()
	return &statedir.Dir{Root: testhome.Dir(t)}
}

// Machine returns a machine of the template image with the default shape, built
// in h where it is not yet.
func Machine(t testing.TB, h *statedir.Dir, image string) substrate.Machine {
	t.Helper()
	return made(t, h, image, nil)
}

// Deterministic returns a deterministic machine, as Machine does.
func Deterministic(t testing.TB, h *statedir.Dir, image string,
	d substrate.Determinism) substrate.Machine {
	t.Helper()
	m := made(t, h, image, &d)
	m.Shape.CPUs = 1
	return m
}

func made(t testing.TB, h *statedir.Dir, image string,
	d *substrate.Determinism) substrate.Machine {
	t.Helper()
	ctx := t.Context()
	progress := func(what string) { t.Log(what) }
	tmpl, err := template.NewStore(h.Path("templates")).Ensure(ctx, image, progress)
	fatal(t, err)
	dir, err := h.MkdirAll("kernel")
	fatal(t, err)
	k, err := kernel.Ensure(ctx, dir, Kernel(), progress)
	fatal(t, err)
	agent, err := agentbin.Agent("")
	fatal(t, err)
	if d != nil {
		k = k.ForDisksInMemory()
	}
	initramfs, digest, err := k.Initramfs(ctx, dir, kernel.Program(agent))
	fatal(t, err)
	return substrate.Machine{Determinism: d, Kernel: k.Vmlinux, KernelDigest: k.Digest, KernelIs: substrate.KernelKind{Own: k.Own, Test: k.Test},
		Initramfs: initramfs, InitDigest: digest,
		Agent: agent.Read, AgentDigest: agent.Digest, Root: tmpl.Root, RootDigest: tmpl.RootDigest, Shape: turnstone.DefaultShape()}
}

// Kernel is the kernel that guests of tests boot: TURN_KERNEL and TURN_KERNEL_MODULES name one
// that is made for tests.
func Kernel() kernel.Choice {
	return kernel.Choice{Image: os.Getenv("TURN_KERNEL"), Modules: os.Getenv("TURN_KERNEL_MODULES")}
}

// UnderKVM reports whether guests have to run under KVM: nothing may take its place, or be skipped.
func UnderKVM() bool { return os.Getenv("TURN_TEST_KVM") != "" }

// HostOnly reports whether the conformance suite of a substrate leaves out what the guest alone decides, because
// another run of the same substrate tests it.
func HostOnly(substrate string) bool { return os.Getenv("TURN_TEST_HOST_ONLY") == substrate }

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
}
