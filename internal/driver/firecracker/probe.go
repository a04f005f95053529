package firecracker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/substrate"
)

// KVM returns the verdict on guests under KVM. What rules KVM out without a guest is checked at
// once. Otherwise a guest must really start: that is tried once, with probe, and remembered until
// Firecracker, the host's kernel, its CPU or a user's guest kernel changes. Without a probe the
// verdict may be unknown.
func (s *Substrate) KVM(ctx context.Context, probe *substrate.Machine) kvm.Verdict {
	q := kvm.Question{
		Home: s.home, Name: "firecracker", On: fmt.Sprintf("%s|%s|%s|%s|%s", s.binary, s.version,
			s.kernel, s.hostCPU, s.wall.Wall),
		Kernel: s.guest, May: s.mayOpen, Try: s.tryKVM,
	}
	if probe != nil {
		q.Init = probe.InitDigest
		q.Prove = func(ctx context.Context, limit time.Duration) (kvm.Verdict, error) {
			s.progress("checking whether KVM runs a guest of Firecracker (once)")
			return s.prove(ctx, *probe, limit)
		}
	}
	return q.Ask(ctx)
}

func mayOpenKVM() error { return kvm.MayOpen(kvm.Device) }

// tryKVM rules KVM out without a guest.
func tryKVM() error { return kvm.Try(kvm.Device) }

// prove boots m. A Firecracker that ends or refuses, and a machine that does not get ready, are a
// verdict; an error is unrelated to KVM.
func (s *Substrate) prove(ctx context.Context, m substrate.Machine,
	limit time.Duration) (kvm.Verdict, error) {
	began := time.Now()
	vm, err := s.boot(ctx, m)
	if err == nil {
		defer vm.Close()
		err = vm.wait(ctx, kvm.Proving(limit))
	}
	var refused *apiError
	switch {
	case ctx.Err() != nil:
		return kvm.Verdict{}, ctx.Err()
	case err != nil && vm == nil && turnstone.KindOf(err) != turnstone.KindDead &&
		!errors.As(err, &refused):
		return kvm.Verdict{}, err
	case err != nil:
		return kvm.Failed(err, s.guest.KernelKind), nil
	}
	return kvm.Ran(time.Since(began)), nil
}
