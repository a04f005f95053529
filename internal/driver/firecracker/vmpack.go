package firecracker

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

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir,
	out string) (substrate.Packed, error) {
	return s.packer(ctx, m).Pack(ctx, dir, out)
}

// PackBase implements substrate.BasePacker.
func (s *Substrate) PackBase(ctx context.Context, m substrate.Machine, base turnstone.Digest,
	out string) ([]string, error) {
	return s.packer(ctx, m).PackBase(ctx, base, out)
}

// Abilities implements substrate.Able.
func (s *Substrate) Abilities() substrate.Abilities {
	return substrate.Abilities{Live: s.release.standstill(), Keep: s.keeping()}
}

// keeping returns why machines are neither kept nor restored; nil: they can be. A machine's state
// contains the paths of its disks, and may come with an imported session: outside a jail,
// Firecracker opens any file of its user that the state names, and its guest reads and writes the
// file.
func (s *Substrate) keeping() error {
	if s.wall.Confined() {
		return nil
	}
	hint := "keep and resume machines with --substrate qemu or gvisor, or as root"
	if allow := host.AllowUserNamespaces(); allow != "" {
		hint = "let users create namespaces (" + allow +
			"), or keep and resume machines with --substrate qemu or gvisor"
	}
	return turnstone.NewError("firecracker.keep", turnstone.KindUnavailable, "firecracker",
		errors.New("it runs without a jail, so a kept machine could name any file of yours as "+
			"its disk: "+s.wall.Reason)).
		WithHint(hint)
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed substrate.PackedFiles,
	dir string) error {
	if err := s.keeping(); err != nil {
		return err
	}
	return s.unpack(ctx, m, packed, dir)
}

func (s *Substrate) unpack(ctx context.Context, m substrate.Machine, packed substrate.PackedFiles,
	dir string) error {
	if err := s.release.standstill(); err != nil { // no machine could start from it
		return err
	}
	return s.packer(ctx, m).Unpack(ctx, packed, dir)
}

func (s *Substrate) packer(ctx context.Context, m substrate.Machine) snapshots.Packer[identity] {
	now := s.identity(m)
	return snapshots.Packer[identity]{Op: turnstone.Op(s.Name()), Machine: m, Identity: now,
		RAM:     mebibytes(m.Shape.Memory) << 20,
		Wrap:    func(err error) error { return s.wrap(ctx, err) },
		Base:    func(id identity) string { return s.home.Path("snapshots", id.key()) },
		Differs: func(id identity, cpu *host.Model) string { return id.movedTo(now, cpu) },
		Prepare: func(dir string) error { // the same as in take
			return errors.Join(os.Chmod(filepath.Join(dir, ramFile), 0o444),
				os.Chmod(filepath.Join(dir, stateFile), 0o444))
		}}
}

// movedTo names the first property in which a kept machine of identity id, on a CPU of the given
// model, is incompatible with identity now; "" if there is none. The microcode may differ, the CPU
// may have more features, the host's kernel may have another patch level, and it does not matter
// who chose the guest's kernel.
func (id identity) movedTo(now identity, cpu *host.Model) string {
	why := ""
	if id.HostCPU != now.HostCPU {
		why, id.HostCPU = cpu.Differs(), now.HostCPU
	}
	if host.Series(id.HostKernel) == host.Series(now.HostKernel) {
		id.HostKernel = now.HostKernel
	}
	id.OwnKernel = now.OwnKernel
	return cmp.Or(id.differs(now), why)
}
