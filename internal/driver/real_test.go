package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestUnprovenDrivers checks that a user's kernel without a proof is not assumed to fail although
// Debian's kernel fails here: neither driver uses the verdict on another kernel.
func TestUnprovenDrivers(t *testing.T) {
	if err := kvm.MayOpen(kvm.Device); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for name, says := range map[string]string{"firecracker": "Firecracker v1.15.1",
		"jailer": "Jailer v1.15.1"} {
		if err := os.WriteFile(filepath.Join(dir, name),
			[]byte(fmt.Sprintf("#!/bin/sh\necho '%s'\n", says)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := substrate.GuestKernel{KernelKind: substrate.KernelKind{Own: true},
		Digest: turnstone.DigestBytes([]byte("a kernel"))}
	c := Chooser{Home: &statedir.Dir{Root: t.TempDir()},
		Programs: Programs{Firecracker: filepath.Join(dir, "firecracker")},
		Kernel:   func(context.Context) (substrate.GuestKernel, error) { return own, nil }}
	for _, name := range []string{Firecracker, QEMU} {
		d := c.Decide(t.Context(), name, Needs{})
		if len(d.Trials) == 0 || d.Trials[0].How != "KVM" {
			t.Fatalf("%s: %+v", name, d)
		}
		if err := d.Trials[0].Err; !d.Trials[0].Unproven() &&
			turnstone.HintOf(err) != "sudo apt-get install --no-install-recommends "+
				"qemu-system-x86" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
