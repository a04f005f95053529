package firecracker

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// tries counts how often a stand-in was started to determine whether KVM works.
func (b *bench) tries(t *testing.T) (n int) {
	for _, r := range requests(notes(t, b.log)) {
		if r == "PUT /machine-config" {
			n++
		}
	}
	return n
}

func TestKVM(t *testing.T) {
	b := newBench(t, "")
	b.s.tryKVM = func() error { return fs.ErrPermission }
	if v := b.s.KVM(t.Context(), &b.m); v.Usable || !v.Known || v.Proven || b.tries(t) != 0 {
		t.Errorf("ruled out: %+v", v)
	}
	b.s.tryKVM = func() error { return nil }
	if v := b.s.KVM(t.Context(), nil); v.Usable || v.Known {
		t.Errorf("without a machine: %+v", v)
	}
	for range 2 {
		if v := b.s.KVM(t.Context(), &b.m); !v.Usable || !v.Known || !v.Proven {
			t.Errorf("a guest that starts: %+v", v)
		}
	}
	if v := b.s.KVM(t.Context(), nil); !v.Usable {
		t.Errorf("remembered: %+v", v)
	}
	if b.tries(t) != 1 {
		t.Errorf("tried %d times", b.tries(t))
	}
	b.s.kernel += "-new"
	if v := b.s.KVM(t.Context(), nil); v.Usable || v.Known {
		t.Errorf("on another kernel: %+v", v)
	}
	b.nothingLeft(t)
}

func TestKVMThatFails(t *testing.T) {
	for fault, want := range map[string]string{"panic": "panicked",
		"panic and hang": "panicked: No working init", "refuse:/actions": "refuse",
		"exit": "broken", "poweroff": "shut"} {
		b := newBench(t, "")
		s := b.substrate(t, fault)
		s.tryKVM = func() error { return nil }
		for range 2 {
			if v := s.KVM(t.Context(), &b.m); v.Usable || !v.Known ||
				!strings.Contains(v.Reason, want) {
				t.Errorf("%s: %+v", fault, v)
			}
		}
		b.nothingLeft(t)
	}
	// An error unrelated to KVM is no verdict on KVM.
	b := newBench(t, "")
	b.s.tryKVM = func() error { return nil }
	m := b.m
	m.Kernel = "/none"
	if v := b.s.KVM(t.Context(), &m); v.Usable || v.Known {
		t.Errorf("without a kernel: %+v", v)
	}
	if v := b.s.KVM(t.Context(), &b.m); !v.Usable {
		t.Errorf("with one: %+v", v)
	}
}

// TestKernelAtFault checks that the reported fault of a user's kernel is the error for callers that
// cannot try the kernel, and is no verdict for callers that can: its modules may have changed.
func TestKernelAtFault(t *testing.T) {
	b := newBench(t, "")
	s := b.substrate(t, "panic")
	s.tryKVM = func() error { return nil }
	m := b.m
	m.KernelIs, m.InitDigest = substrate.KernelKind{Own: true, File: "/srv/vmlinux"},
		turnstone.DigestBytes([]byte("its modules"))
	s.guest = m.GuestKernel()
	if v := s.KVM(t.Context(), &m); v.Usable || !v.Kernel {
		t.Fatalf("%+v", v)
	}
	v := s.KVM(t.Context(), nil)
	if err := s.unusable(v, Options{}); errors.Is(err, ErrUnproven) ||
		!strings.Contains(err.Error(), "panicked") || turnstone.HintOf(err) != m.KernelIs.Advice() {
		t.Errorf("it cannot be tried: %v (%s)", err, turnstone.HintOf(err))
	}
	if err := s.unusable(v, Options{Again: true}); !errors.Is(err, ErrUnproven) {
		t.Errorf("it will be: %v", err)
	}
	b.nothingLeft(t)
}

func TestIsolationNamesTestKernel(t *testing.T) {
	s := &Substrate{guest: substrate.GuestKernel{KernelKind: substrate.KernelKind{Own: true,
		Test: true}}}
	if got := s.Isolation(); got != "microvm (KVM, test kernel)" {
		t.Errorf("%q", got)
	}
	s.wall.Wall = byJailer
	if got := s.Isolation(); got != "microvm (KVM, test kernel, jailed)" {
		t.Errorf("%q", got)
	}
}

// TestNewUnproven checks, on any machine, that New succeeds only after a guest has started.
func TestNewUnproven(t *testing.T) {
	b := newBench(t, "")
	h := &statedir.Dir{Root: t.TempDir()}
	_, err := New(t.Context(), h, Options{Binary: b.s.binary, Jailer: b.script(t, "j", "true")})
	if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Errorf("got %v (%s)", err, turnstone.HintOf(err))
	}
	if tryKVM() == nil && !errors.Is(err, ErrUnproven) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(h.Path("cache", "kvm-firecracker.json")); err == nil {
		t.Error("a verdict is remembered that nobody found")
	}
}
