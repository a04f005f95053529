package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

func TestNextModel(t *testing.T) {
	const abort = "\nqemu-system-x86_64: ../../target/i386/kvm/kvm.c:3213: kvm_buf_set_msrs: " +
		"Assertion `ret == cpu->kvm_msr_buf->nmsrs' failed.\n"
	for _, tt := range []struct{ model, said, next, why string }{
		{"host", "qemu-system-x86_64: error: failed to set MSR 0x10a to 0x8000000" + abort,
			"host,-arch-capabilities", "failed to set MSR 0x10a to 0x8000000"},
		{"host,-arch-capabilities", "qemu: error: failed to get MSR 0x38f" + abort,
			"host,-arch-capabilities,pmu=off", "failed to get MSR 0x38f"},
		{"host,-arch-capabilities", "qemu: error: failed to set MSR 0x10a to 0x1", "qemu64",
			"failed to set MSR 0x10a to 0x1"},
		{"host", "qemu: error: failed to set MSR 0x12345678 to 0x1", "qemu64",
			"failed to set MSR 0x12345678 to 0x1"},
		{"host", "qemu: CPU model 'host' requires KVM or HVF\x1b", "qemu64",
			"qemu: CPU model 'host' requires KVM or HVF?"},
		{"qemu64", "qemu: error: failed to set MSR 0x10a to 0x1", "", ""},
		{"host", "qemu: could not open disk image", "", ""},
		{"host", "", "", ""},
	} {
		if next, why := nextModel(tt.model, tt.said); next != tt.next || why != tt.why {
			t.Errorf("%s: %q: %q (%q), want %q (%q)", tt.model, tt.said, next, why, tt.next, tt.why)
		}
	}
}

// TestNextModelEnds checks that no model is tried twice, and that the tries end, whatever QEMU
// prints.
func TestNextModelEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model, seen := engine{accel: accelKVM}.model(), map[string]bool{}
		for model != "" {
			if seen[model] || len(seen) > 40 {
				t.Fatalf("%q is tried again, after %d", model, len(seen))
			}
			seen[model] = true
			said := rapid.OneOf(rapid.Custom(func(t *rapid.T) string {
				return fmt.Sprintf("failed to set MSR 0x%x to 0x1", rapid.OneOf(rapid.Uint32(),
					rapid.Uint32Range(0, 0xfff)).Draw(t, "msr"))
			}), rapid.String()).Draw(t, "said")
			model, _ = nextModel(model, said)
		}
	})
}

// picky returns a program that is QEMU, runs by TCG what should run under KVM, and rejects CPU
// models like a QEMU whose KVM rejects them.
func picky(t *testing.T, refuses string) string {
	t.Helper()
	real, err := host.FindSystem(binaryName)
	if err != nil {
		t.Skip(err)
	}
	return program(t, `for a; do
	shift
	case $a in
	`+refuses+`) echo 'qemu: error: failed to set MSR 0x10a to 0x8000000' >&2; kill -ABRT $$;;
	kvm) a=tcg;;
	host*) a=max;;
	esac
	set -- "$@" "$a"
done
exec `+real+` "$@"`)
}

// program returns a shell script that every user may run.
func program(t *testing.T, script string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "turn-qemu-*")
	if err == nil {
		err = os.Chmod(dir, 0o755) // root's QEMU is nobody
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "qemu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCPUIsReplaced checks that a rejected model is no verdict on KVM, that the working model is
// reported with the reason, and that its snapshots differ.
func TestCPUIsReplaced(t *testing.T) {
	dir := t.TempDir()
	m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"), Initramfs: filepath.Join(dir,
		"empty"), Root: filepath.Join(dir, "empty"), Shape: turnstone.DefaultShape()}
	for path, content := range map[string][]byte{m.Kernel: talkingKernel(
		"turnstone-agent: ready\n"), m.Root: make([]byte, 4096)} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for refuses, want := range map[string]string{"nothing": "host",
		"host": "host,-arch-capabilities", "host*": "qemu64"} {
		s, err := New(t.Context(), &statedir.Dir{Root: t.TempDir()},
			Options{Binary: picky(t, refuses)})
		if err != nil {
			t.Fatal(err)
		}
		s.wall = Jail{Wall: open} // a script needs its shell
		v, err := s.prove(t.Context(), m, time.Minute)
		if err != nil || !v.Usable || v.CPU != want {
			t.Errorf("it refuses %s: %+v, %v; want %s", refuses, v, err, want)
		}
		if told := strings.Contains(v.Why, "failed to set MSR 0x10a"); told != (want != "host") {
			t.Errorf("it refuses %s: why: %q", refuses, v.Why)
		}
		s.accel = accelKVM
		before := s.identity(m).key()
		s.cpu = v.CPU
		if after := s.identity(m).key(); (after == before) != (want == "host") {
			t.Errorf("a snapshot with the CPU %s has the key of one with host: %t", v.CPU,
				after == before)
		}
	}
	s, err := New(t.Context(), &statedir.Dir{Root: t.TempDir()},
		Options{Binary: picky(t, "host*|qemu64")})
	if err != nil {
		t.Fatal(err)
	}
	s.wall = Jail{Wall: open}
	if v, err := s.prove(t.Context(), m, time.Minute); err != nil || v.Usable ||
		!strings.Contains(v.Reason, "MSR 0x10a") {
		t.Errorf("it refuses all: %+v, %v", v, err)
	}
}

func FuzzNextModel(f *testing.F) {
	f.Add("failed to set MSR 0x10a to 0x8000000")
	f.Add("CPU model 'host' requires KVM")
	f.Fuzz(func(t *testing.T, said string) {
		next, why := nextModel("host", said)
		if strings.ContainsAny(next+why, "\x00\x1b\n\r") || (next == "") != (why == "") ||
			strings.ContainsAny(next, " \"'") {
			t.Errorf("%q: %q", next, why)
		}
	})
}
