package qemu

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/substrate"
)

// mayOpen returns why QEMU may not open KVM's device; nil: it may. In root's namespaces QEMU has
// its own device node, and the mode of the host's node does not matter.
func (s *Substrate) mayOpen() error {
	who := unprivileged()
	if who != nil && s.wall.Namespaces() && jail.OwnsDevices(kvmDevice) == nil {
		who = nil
	}
	return mayOpen(kvmDevice, who)
}

// mayOpen returns why a QEMU that runs as who, or as this user if who is nil, may not open the
// device for reading and writing; nil: it may.
func mayOpen(device string, who *syscall.Credential) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if who == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	byGroup := st.Mode&0o060 == 0o060 && slices.Contains(who.Groups, st.Gid)
	if st.Mode&0o006 == 0o006 || byGroup {
		return nil
	}
	return &fs.PathError{Op: "open", Path: device,
		Err: fmt.Errorf("it is root's alone, and root's QEMU runs as nobody: %w", fs.ErrPermission)}
}

// KVM returns the verdict on KVM. What rules KVM out without a guest is checked at once. Otherwise
// a guest must really start under it: that is tried once, with probe, and remembered until QEMU,
// the host's kernel, its CPU or a user's guest kernel changes.
func (s *Substrate) KVM(ctx context.Context, probe *substrate.Machine) kvm.Verdict {
	q := kvm.Question{
		Home: s.home, Name: "qemu", On: fmt.Sprintf("%s|%s|%s", s.version,
			host.Kernel(), s.hostCPU), Kernel: s.kernel,
		May: s.mayOpen,
		Try: func() error { return kvm.Try(kvmDevice) },
	}
	if probe != nil {
		q.Init = probe.InitDigest
		q.Prove = func(ctx context.Context, limit time.Duration) (kvm.Verdict, error) {
			s.progress("checking whether KVM runs a guest (once)")
			return s.prove(ctx, *probe, limit)
		}
	}
	return q.Ask(ctx)
}

// prove boots m. If QEMU rejects the virtual CPU, prove tries a reduced CPU. An error is unrelated
// to KVM.
func (s *Substrate) prove(ctx context.Context, m substrate.Machine,
	limit time.Duration) (kvm.Verdict, error) {
	k := *s
	k.accel, k.cpu = accelKVM, ""
	for why := ""; ; {
		v, said, err := k.proveOnce(ctx, m, limit)
		if err != nil {
			return kvm.Verdict{}, err
		}
		v.CPU, v.Why = k.engine().model(), why
		next, refused := nextModel(v.CPU, said)
		if v.Usable || next == "" {
			return v, nil
		}
		k.cpu = next
		if why == "" { // QEMU's reason against the host's CPU
			why = refused
		}
	}
}

// proveOnce also returns the output of a QEMU that has ended by itself.
func (s *Substrate) proveOnce(ctx context.Context, m substrate.Machine,
	limit time.Duration) (v kvm.Verdict, said string, err error) {
	began := time.Now()
	vm, err := s.bootFresh(ctx, m)
	if err != nil {
		return kvm.Verdict{}, "", err
	}
	defer vm.Close()
	err = vm.wait(ctx, kvm.Proving(limit))
	select {
	case <-vm.Done():
		said = vm.stderr.String()
	default:
	}
	switch {
	case ctx.Err() != nil:
		return kvm.Verdict{}, "", ctx.Err()
	case turnstone.KindOf(err) == turnstone.KindExhausted,
		turnstone.KindOf(err) == turnstone.KindUnavailable:
		return kvm.Verdict{}, "", err // the host's disk, or QEMU's jail
	case err != nil:
		return kvm.Failed(err, s.kernel.KernelKind), said, nil
	}
	return kvm.Ran(time.Since(began)), "", nil
}
