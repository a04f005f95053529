package firecracker

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/snapshots"
)

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir, out string) (substrate.Packed, error) {
	p, err := s.packer(m).Pack(ctx, dir, out)
	if err != nil {
		return p, s.wrap(ctx, err)
	}
	return p, nil
}

// Keeping implements substrate.KeepRestricted. The paths of a machine's disks are in its state,
// which may come with an imported session: without a jail, Firecracker opens whatever file of
// its user they name, and its guest reads and writes it.
func (s *Substrate) Keeping() error {
	if s.jailer != "" {
		return nil
	}
	return &turnstone.Error{Op: "firecracker.keep", Kind: turnstone.Unavailable, Subject: "firecracker",
		Err:  errors.New("without its jailer, which takes root, a kept machine could name any file of yours as its disk"),
		Hint: "keep and resume machines with --substrate qemu or gvisor, or as root"}
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed, dir string) error {
	if err := s.Keeping(); err != nil {
		return err
	}
	return s.unpack(ctx, m, packed, dir)
}

func (s *Substrate) unpack(ctx context.Context, m substrate.Machine, packed, dir string) error {
	if err := s.Standstill(); err != nil { // nothing could start from it
		return err
	}
	if err := s.packer(m).Unpack(ctx, packed, dir); err != nil {
		return s.wrap(ctx, err)
	}
	return nil
}

func (s *Substrate) packer(m substrate.Machine) snapshots.Packer[identity] {
	return snapshots.Packer[identity]{Op: s.Name(), Machine: m, RAM: mebibytes(m.Shape.Memory) << 20,
		Base:    func(id identity) string { return s.home.Path("snapshots", id.key()) },
		Differs: func(id identity) string { return id.differs(s.identity(m)) },
		Prepare: func(dir string) error { // as take has them
			return errors.Join(os.Chmod(filepath.Join(dir, ramFile), 0o444), os.Chmod(filepath.Join(dir, stateFile), 0o444))
		}}
}
