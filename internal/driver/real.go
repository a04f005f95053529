package driver

import (
	"context"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/firecracker"
	"turnstone.dev/turnstone/internal/driver/gvisor"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/substrate"
)

// The drivers' abilities; see substrate.AbilitiesOf.
var (
	_ = substrate.Keeper((*firecracker.Substrate)(nil))
	_ = substrate.Keeper((*qemu.Substrate)(nil))
	_ = substrate.Keeper((*gvisor.Substrate)(nil))
)

// real returns all options, best first.
func real(c *Chooser) []option {
	all := ability{live: true, keep: true}
	return []option{
		{name: Firecracker, how: withKVM, microVM: true, home: true, can: all, open: c.firecracker},
		{name: QEMU, how: withKVM, microVM: true, home: true, can: all, open: c.accelerated},
		{name: GVisor, own: true, can: all, tier: turnstone.TierSeeded, open: c.gvisor},
		{name: QEMU, how: withTCG, microVM: true, home: true, can: all, tier: turnstone.TierStrict,
			open: c.translated},
	}
}

// machine returns the machine that proves KVM, or nil without Probe.
func (c *Chooser) machine(ctx context.Context) (*substrate.Machine, error) {
	if c.Probe == nil {
		return nil, nil
	}
	m, err := c.Probe(ctx)
	return &m, err
}

// translated opens QEMU with TCG.
func (c *Chooser) translated(ctx context.Context, kernel substrate.GuestKernel,
	before error) (substrate.Substrate, error) {
	s, err := qemu.New(ctx, c.Home, qemu.Options{Progress: c.say, Binary: c.Programs.QEMU,
		Kernel: kernel, Fallback: before, Translate: true})
	if err != nil { // a nil *Substrate is not a nil Substrate
		return nil, err
	}
	return s, nil
}

// accelerated opens QEMU with KVM. It first checks what rules KVM out without a guest, because a
// proof needs a kernel and up to a minute.
func (c *Chooser) accelerated(ctx context.Context, kernel substrate.GuestKernel,
	_ error) (substrate.Substrate, error) {
	s, err := qemu.New(ctx, c.Home, qemu.Options{Progress: c.say, Binary: c.Programs.QEMU,
		Kernel: kernel})
	if err != nil {
		return nil, err
	}
	if s.Accelerated() {
		return s, nil
	}
	// without Probe a kernel's fault is reported as it is
	if v := s.Verdict(); !v.Known && (c.Probe != nil || !v.Kernel) {
		if m, err := c.machine(ctx); err != nil {
			return nil, err
		} else if m != nil {
			s, err = qemu.New(ctx, c.Home, qemu.Options{Progress: c.say,
				Binary: c.Programs.QEMU, Probe: m})
			if err != nil {
				return nil, err
			}
			if s.Accelerated() {
				return s, nil
			}
		} else {
			return nil, turnstone.NewError("substrates.qemu", turnstone.KindUnavailable, "KVM",
				ErrUnproven).WithHint("run a turn, which tries KVM")
		}
	}
	return nil, s.Verdict().Unavailable("substrates.qemu", kernel.KernelKind)
}

func (c *Chooser) gvisor(ctx context.Context, _ substrate.GuestKernel,
	_ error) (substrate.Substrate, error) {
	s, err := gvisor.New(ctx, c.Home, gvisor.Options{Progress: c.say, Binary: c.Programs.Runsc})
	if err != nil {
		return nil, err
	}
	if ok, why := s.Usable(ctx); !ok {
		return nil, turnstone.Errorf("substrates.gvisor", turnstone.KindUnavailable, "gvisor",
			"%s", why).WithHint("run `turn doctor`")
	}
	return s, nil
}

// firecracker opens Firecracker, which itself checks what rules KVM out without a guest.
func (c *Chooser) firecracker(ctx context.Context, kernel substrate.GuestKernel,
	_ error) (substrate.Substrate, error) {
	s, err := firecracker.New(ctx, c.Home,
		c.Programs.firecracker(firecracker.Options{Progress: c.say, Kernel: kernel,
			Again: c.Probe != nil}))
	if errors.Is(err, firecracker.ErrUnproven) {
		m, probeErr := c.machine(ctx)
		if probeErr != nil {
			return nil, probeErr
		}
		if m != nil {
			s, err = firecracker.New(ctx, c.Home,
				c.Programs.firecracker(firecracker.Options{Progress: c.say, Probe: m}))
		}
	}
	if err != nil { // a nil *Substrate is not a nil Substrate
		return nil, err
	}
	return s, nil
}

func (p Programs) firecracker(o firecracker.Options) firecracker.Options {
	o.Binary, o.Jailer = p.Firecracker, p.Jailer
	return o
}
