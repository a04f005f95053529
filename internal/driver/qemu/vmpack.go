package qemu

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.BasePacker = (*Substrate)(nil)
	_ substrate.Able       = (*Substrate)(nil)
)

// Abilities implements substrate.Able.
func (s *Substrate) Abilities() substrate.Abilities {
	return substrate.Abilities{
		Keep: s.keeping()}
}

// keeping returns why machines are neither kept nor restored; nil: they can be. A kept machine's
// device state may come with an imported session, and QEMU's parsers for it are not hardened
// against attackers: an attacker who takes over QEMU this way must be in a jail.
func (s *Substrate) keeping() error {
	if s.wall.Namespaces() {
		return nil
	}
	hint := "keep and resume machines with --substrate gvisor"
	if allow := host.AllowUserNamespaces(); allow != "" {
		hint = "let users create namespaces (" + allow +
			"), or keep and resume machines with --substrate gvisor"
	}
	return turnstone.NewError("qemu.keep", turnstone.KindUnavailable, "qemu",
		errors.New("it has no namespaces of its own here, and a kept machine's devices are "+
			"untrusted: "+s.wall.Reason)).
		WithHint(hint)
}

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir,
	out string) (substrate.Packed, error) {
	return s.packer(m).Pack(ctx, dir, out)
}

// PackBase implements substrate.BasePacker.
func (s *Substrate) PackBase(ctx context.Context, m substrate.Machine, base turnstone.Digest,
	out string) ([]string, error) {
	return s.packer(m).PackBase(ctx, base, out)
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed substrate.PackedFiles,
	dir string) error {
	if err := s.keeping(); err != nil {
		return err
	}
	return s.packer(m).Unpack(ctx, packed, dir)
}

func (s *Substrate) packer(m substrate.Machine) snapshots.Packer[identity] {
	size := int64(m.Shape.Memory)
	now := s.identity(m)
	return snapshots.Packer[identity]{Op: "qemu", Machine: m, Identity: now, RAM: size,
		Wrap:    s.wrap,
		Base:    func(id identity) string { return s.home.Path("snapshots", id.key()) },
		Differs: func(id identity, cpu *host.Model) string { return id.movedTo(now, cpu) },
		Prepare: func(dir string) error {
			ram, err := os.OpenFile(filepath.Join(dir, ramFile), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer ram.Close()
			return prepareMemory(ram, size)
		}}
}

// movedTo names the first property in which a kept machine of identity id, on a CPU of the given
// model, is incompatible with identity now; "" if there is none. The microcode may differ, the CPU
// may have more features, and it does not matter who chose the guest's kernel.
func (id identity) movedTo(now identity, cpu *host.Model) string {
	why := ""
	if id.HostCPU != now.HostCPU {
		why, id.HostCPU = cpu.Differs(), now.HostCPU
	}
	id.OwnKernel = now.OwnKernel
	return cmp.Or(id.differs(now), why)
}
