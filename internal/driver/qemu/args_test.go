package qemu

import (
	"regexp"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/substrate"
)

// TestKernelArgs checks that under KVM none of the guest kernel's protection is disabled, and that
// under TCG the protections that slow a start are. Both are part of a snapshot's identity.
func TestKernelArgs(t *testing.T) {
	shape := turnstone.DefaultShape()
	weak := regexp.MustCompile(
		`(^| )(mitigations=|hardened_usercopy=|randomize_kstack_offset=|init_on_alloc=|init_on_free=|norandmaps|nokaslr|lsm=|` +
			`no[a-z_0-9]*mitigat|nopti|pti=|nospectre|spec_|l1tf=|mds=|tsx|nosm[ae]p|kpti|slab_nomerge|vsyscall=|rodata=|nosmt)`)
	for _, network := range []bool{true, false} {
		shape.Network = network
		if line := kernelArgs(accelKVM, shape); weak.MatchString(line) {
			t.Errorf("under KVM: %q in %s", weak.FindString(line), line)
		}
		for _, word := range unhardened {
			if line := kernelArgs(accelTCG, shape); !strings.Contains(" "+line+" ", " "+word+" ") ||
				!weak.MatchString(word) {
				t.Errorf("under TCG: %s, in %s", word, line)
			}
		}
	}
	m := substrate.Machine{Shape: shape}
	before := (&Substrate{accel: accelTCG}).identity(m)
	saved := unhardened
	defer func() { unhardened = saved }()
	unhardened = unhardened[1:]
	if after := (&Substrate{accel: accelTCG}).identity(m); after.key() == before.key() {
		t.Error("a snapshot of another command line has the same identity")
	}
}

// TestIsolationNamesTestKernel checks that receipts name a test kernel.
func TestIsolationNamesTestKernel(t *testing.T) {
	test := substrate.GuestKernel{KernelKind: substrate.KernelKind{Own: true, Test: true}}
	for want, s := range map[string]*Substrate{
		"microvm (KVM)": {accel: accelKVM, wall: Jail{Wall: jailed}},
		"microvm (KVM, test kernel)": {accel: accelKVM, wall: Jail{Wall: jailed},
			kernel: test},
		"microvm (TCG, test kernel), no namespaces": {accel: accelTCG, kernel: test},
	} {
		if got := s.Isolation(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNoCard checks that a machine without a network card says so, and has no end of a card.
func TestNoCard(t *testing.T) {
	m := &machine{Process: kit.New("sb_x", console.New(), "")}
	if frames, err := m.Frames(); frames != nil || turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v, %v", frames, err)
	}
}
