package kvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// asked is a Question that counts its guests, on a host that answers as configured.
type asked struct {
	Question
	guests int
	limit  time.Duration // limit of the last guest
}

func newAsked(t *testing.T, try error, answer Verdict) *asked {
	a := new(asked)
	a.Question = Question{Home: &statedir.Dir{Root: t.TempDir()}, Name: "test", On: "host",
		May: func() error { return nil }, Try: func() error { return try },
		Prove: func(_ context.Context, limit time.Duration) (Verdict, error) {
			a.guests, a.limit = a.guests+1, limit
			return answer, nil
		}}
	return a
}

func own(image string) substrate.GuestKernel {
	return substrate.GuestKernel{KernelKind: substrate.KernelKind{Own: true, File: "/" + image},
		Digest: turnstone.DigestBytes([]byte(image))}
}

// TestOwnKernelDecides checks that an emulating host is ruled out for Debian's kernel without a
// guest, and for a user's kernel only by a guest.
func TestOwnKernelDecides(t *testing.T) {
	a := newAsked(t, ErrEmulated, Ran(time.Second))
	if v := a.Ask(t.Context()); v.Usable || !v.Known || !v.Emulated || a.guests != 0 {
		t.Errorf("Debian's: %+v after %d guests", v, a.guests)
	}
	a.Kernel = own("a")
	for range 2 {
		if v := a.Ask(t.Context()); !v.Usable || !v.Known || !v.Proven || !v.Emulated ||
			a.guests != 1 || a.limit != limitEmulated {
			t.Errorf("the user's: %+v after %d guests, %s", v, a.guests, a.limit)
		}
	}
	if v := a.Ask(t.Context()); !v.Usable {
		t.Errorf("remembered: %+v", v)
	}
	a.Kernel = substrate.GuestKernel{}
	if v := a.Ask(t.Context()); v.Usable || a.guests != 1 {
		t.Errorf("what one kernel does says nothing of Debian's: %+v", v)
	}
	real := newAsked(t, nil, Ran(time.Second))
	if v := real.Ask(t.Context()); !v.Usable || v.Emulated || real.limit != limit {
		t.Errorf("KVM that works: %+v, %s", v, real.limit)
	}
}

// TestVerdictIsForOneKernel checks that each kernel has its own verdict, side by side.
func TestVerdictIsForOneKernel(t *testing.T) {
	a := newAsked(t, nil, Ran(time.Second))
	kernels := []substrate.GuestKernel{{}, own("a"), own("b")}
	for range 2 {
		for _, k := range kernels {
			a.Kernel = k
			if v := a.Ask(t.Context()); !v.Usable {
				t.Errorf("%+v: %+v", k, v)
			}
		}
	}
	if a.guests != len(kernels) {
		t.Errorf("%d guests were started", a.guests)
	}
	a.On = "another host"
	if a.Ask(t.Context()); a.guests != len(kernels)+1 {
		t.Error("a verdict holds on another host")
	}
}

// TestDeviceTurnsAway checks that a refusing device is an error that says so, and that no verdict
// is remembered.
func TestDeviceTurnsAway(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EBUSY, syscall.ENODEV} {
		open := newAsked(t, nil, Verdict{})
		open.May = func() error { return &fs.PathError{Op: "open", Path: Device, Err: errno} }
		for what, a := range map[string]*asked{"open": open, "ioctl": newAsked(t, errno,
			Verdict{})} {
			a.Kernel = own("a")
			v := a.Ask(t.Context())
			if v.Usable || !v.Known || v.Proven || a.guests != 0 ||
				!strings.Contains(v.Reason, errno.Error()) ||
				v.Denied != (errno == syscall.EACCES) {
				t.Errorf("%s: %v: %+v after %d guests", what, errno, v, a.guests)
			}
			if left, _ := os.ReadDir(a.Home.Root); len(left) > 0 {
				t.Errorf("%s: %v: %v is left", what, errno, left)
			}
		}
	}
}

// TestProofFails checks that errors unrelated to KVM are asked again, and a late guest after an
// hour.
func TestProofFails(t *testing.T) {
	a := newAsked(t, ErrEmulated, Verdict{})
	a.Kernel = own("a")
	prove := a.Prove
	a.Prove = func(context.Context, time.Duration) (Verdict, error) {
		return Verdict{}, errors.New("the disk is full")
	}
	if v := a.Ask(t.Context()); v.Usable || v.Known ||
		!strings.Contains(v.Reason, "the disk is full") {
		t.Errorf("%+v", v)
	}
	a.Prove = nil
	if v := a.Ask(t.Context()); v.Usable || v.Known || !v.Emulated {
		t.Errorf("nothing is started: %+v", v)
	}
	a.Prove = prove
	late := newAsked(t, nil, Failed(errors.New("it is late"), substrate.KernelKind{}))
	for range 2 {
		if v := late.Ask(t.Context()); v.Usable || v.Lasts || late.guests != 1 {
			t.Errorf("late: %+v after %d guests", v, late.guests)
		}
	}
}

// TestKernelAtFault checks that an error that a user's kernel reports itself is no verdict on KVM:
// it applies to this kernel with these modules, and is reported as the kernel's. With Turnstone's
// kernel, which starts elsewhere, it is the host's fault.
func TestKernelAtFault(t *testing.T) {
	gaveUp := &turnstone.Error{Op: "qemu.boot", Subject: "sb_x",
		Err: &console.GaveUp{Why: "the guest kernel panicked: no tables"}}
	a := newAsked(t, nil, Failed(gaveUp, own("a").KernelKind))
	a.Kernel, a.Init = own("a"), "sha256:modules"
	for range 2 {
		v := a.Ask(t.Context())
		if v.Usable || !v.Known || !v.Kernel ||
			v.Reason != "the guest's kernel is at fault: the guest kernel panicked: no tables" ||
			a.guests != 1 {
			t.Fatalf("%+v after %d guests", v, a.guests)
		}
		if err := v.Unavailable("test", a.Kernel.KernelKind); !errors.Is(err, ErrKernel) ||
			!strings.Contains(turnstone.HintOf(err), "turn doctor --kernel /a") {
			t.Errorf("%v (%s)", err, turnstone.HintOf(err))
		}
	}
	prove := a.Prove
	a.Init, a.Prove = "", nil // as doctor asks, which makes no initramfs
	if v := a.Ask(t.Context()); v.Known || !v.Kernel {
		t.Errorf("without its modules: %+v", v)
	}
	a.Init, a.Prove = "sha256:more modules", prove
	if a.Ask(t.Context()); a.guests != 2 {
		t.Error("other modules are not tried")
	}
	a.Kernel = substrate.GuestKernel{}
	if v := Failed(gaveUp, a.Kernel.KernelKind); v.Kernel || strings.Contains(v.Reason, "sb_x") {
		t.Errorf("Debian's: %+v", v)
	}
	if err := (Verdict{Reason: "x", Proven: true}).Unavailable("test",
		a.Kernel.KernelKind); errors.Is(err, ErrKernel) {
		t.Error(err)
	}
}

// TestHowLong checks that lasting verdicts are remembered for good, KVM's errors during a start not
// at all, and all others for some time.
func TestHowLong(t *testing.T) {
	for _, tt := range []struct {
		err         error
		soon, later int // guests that start until the question is asked again, now and tomorrow
	}{
		{fmt.Errorf("%w: KVM internal error", ErrBroken), 1, 1},
		{fmt.Errorf("%w: kvm run failed Device or resource busy", ErrTurnedAway), 2, 3},
		{console.ErrHangs, 1, 2},
		{errors.New("QEMU ended"), 1, 2},
		{&console.GaveUp{Why: "the guest kernel panicked"}, 1, 2},
	} {
		a := newAsked(t, nil, Failed(tt.err, own("a").KernelKind))
		a.Kernel = own("a")
		a.Ask(t.Context())
		if v := a.Ask(t.Context()); v.Usable || !v.Known || a.guests != tt.soon {
			t.Errorf("%v: %+v after %d guests", tt.err, v, a.guests)
		}
		if v, ok := a.recall(); ok {
			v.When = v.When.Add(-24 * time.Hour)
			a.remember(v)
		}
		if a.Ask(t.Context()); a.guests != tt.later {
			t.Errorf("%v: tomorrow: %d guests", tt.err, a.guests)
		}
	}
}
