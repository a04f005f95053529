package qemu

import (
	"context"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/snapshots"
)

var _ substrate.Keeper = (*Substrate)(nil)

// Pack implements substrate.Keeper.
func (s *Substrate) Pack(ctx context.Context, m substrate.Machine, dir, out string) (substrate.Packed, error) {
	p, err := s.packer(m).Pack(ctx, dir, out)
	if err != nil {
		return p, s.wrap(err)
	}
	return p, nil
}

// Unpack implements substrate.Keeper.
func (s *Substrate) Unpack(ctx context.Context, m substrate.Machine, packed, dir string) error {
	if err := s.packer(m).Unpack(ctx, packed, dir); err != nil {
		return s.wrap(err)
	}
	return nil
}

func (s *Substrate) packer(m substrate.Machine) snapshots.Packer[identity] {
	size := int64(m.Shape.Memory)
	return snapshots.Packer[identity]{Op: "qemu", Machine: m, RAM: size,
		Base:    func(id identity) string { return s.home.Path("snapshots", id.key()) },
		Differs: func(id identity) string { return id.differs(s.identity(m)) },
		Prepare: func(dir string) error {
			ram, err := os.OpenFile(filepath.Join(dir, ramFile), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer func() { _ = ram.Close() }()
			return prepareMemory(ram, size)
		}}
}
