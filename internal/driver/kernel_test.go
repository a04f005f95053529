package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// bzImage returns a kernel whose payload no code here unpacks, and whose header names a release
// (Documentation/arch/x86/boot.rst).
func bzImage(release string) []byte {
	b := make([]byte, 4096)
	copy(b[0x202:], "HdrS\x0f\x02")
	b[0x1f1], b[0x20f], b[0x236], b[0x249], b[0x24c] = 1, 1, 1, 2, 8
	copy(b[0x300:], release+" (a@b)")
	return b
}

// TestKernelIsLookedUpOnce checks that machines boot the kernel that decided the choice of the
// substrate, even if the user's file changes in between and another process stores the new kernel.
func TestKernelIsLookedUpOnce(t *testing.T) {
	h, image := &statedir.Dir{Root: t.TempDir()}, filepath.Join(t.TempDir(), "image")
	put := func(release string) {
		t.Helper()
		if err := os.WriteFile(image, bzImage(release), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := []byte("\x7fELF agent")
	agent := kernel.Program{Digest: turnstone.DigestBytes(program),
		Read: func() ([]byte, error) { return program, nil }}
	put("6.9.0-own")
	k := KernelIn(h, kernel.Choice{Image: image}, nil)
	chosen, err := k.Guest(t.Context())
	if err != nil || chosen.Test || chosen.Release != "6.9.0-own" || chosen.File != image {
		t.Fatalf("%+v, %v", chosen, err)
	}
	put("6.1.192-tpv")
	m, err := k.Fill(t.Context(), substrate.Machine{}, agent)
	if err != nil || m.GuestKernel() != chosen {
		t.Fatalf("%+v boots, %+v was chosen by, %v", m.GuestKernel(), chosen, err)
	}
	if b, err := os.ReadFile(m.Kernel); err != nil || turnstone.DigestBytes(b) != chosen.Digest {
		t.Errorf("%s has another content, or none: %v", m.Kernel, err)
	}
	other, err := KernelIn(h, kernel.Choice{Image: image}, nil).Guest(t.Context())
	if err != nil || !other.Test || other.Digest == chosen.Digest {
		t.Fatalf("the file's new content is not looked at: %+v, %v", other, err)
	}
	if b, err := os.ReadFile(m.Kernel); err == nil && turnstone.DigestBytes(b) != chosen.Digest {
		t.Error("the name of one kernel has the content of another")
	}
}

// TestCheckRunning checks that a machine is used only if the running kernel reports the same
// release as its image, and shows no property of a test kernel unless it is known as a test kernel.
func TestCheckRunning(t *testing.T) {
	release := rapid.SampledFrom([]string{"", "6.1.0-50-cloud-amd64", "6.1.192-tpv", "6.1.192-tpv+",
		"6.1.192-abc", "6.1.192-tpvx"})
	rapid.Check(t, func(t *rapid.T) {
		k := substrate.KernelKind{Own: rapid.Bool().Draw(t, "own"),
			Release: release.Draw(t, "image"),
			File:    rapid.SampledFrom([]string{"", "/srv/vmlinux"}).Draw(t, "file")}
		k.Test = kernel.IsTest(k.Release)
		runs, open := release.Draw(t, "runs"), rapid.Bool().Draw(t, "open")
		err := CheckRunning(k, runs, open)
		same := k.Release == "" || k.Release == runs
		hidden := (kernel.IsTest(runs) || open) && !k.Test
		if (err == nil) != (same && !hidden) {
			t.Fatalf("%+v runs %q, open %t: %v", k, runs, open, err)
		}
		if err != nil && (turnstone.KindOf(err) != turnstone.KindIntegrity ||
			!strings.Contains(err.Error(), k.Release) || !strings.Contains(err.Error(), runs) ||
			turnstone.HintOf(err) != k.Advice()) {
			t.Fatalf("%v (%s) does not name both, and what helps", err, turnstone.HintOf(err))
		}
	})
	if err := CheckRunning(substrate.KernelKind{}, strings.Repeat("\x1b", 1000),
		true); err == nil || len(err.Error()) > 300 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%q", err)
	}
}
