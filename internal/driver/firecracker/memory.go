package firecracker

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/snapshots"
)

// memory is what a machine's memory is known to differ from, so that a snapshot of the
// machine as it runs writes only what the guest has written. Firecracker writes the pages
// that are dirty since its snapshot before, or since the load, into a file with holes
// (docs/snapshotting/snapshot-support.md in its repository, "diff snapshots").
type memory struct {
	base  *os.File // what the machine was loaded from; nil: it was booted
	since *os.File // the pages written until the latest snapshot, else holes; without a name; nil: there was none
	lost  bool     // Firecracker may have forgotten pages that since has not got
	holes func() bool
}

// tracked says whether a difference can be taken.
func (m *memory) tracked() bool { return m.base != nil && !m.lost && m.holes() }

func (m *memory) close() {
	for _, f := range []*os.File{m.base, m.since} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// keepsHoles says whether Firecracker's differences can be read where they are written.
func (s *Substrate) keepsHoles() bool {
	dir, err := s.home.MkdirAll(cellsDir)
	return err == nil && disk.KeepsHoles(dir)
}

// writeLive puts the state, the memory and the scratch disk of the machine into the folder
// dir. The guest stands still while Firecracker writes and the disk is copied, and no longer.
func (m *machine) writeLive(ctx context.Context, dir string) error {
	defer m.dropWritten()
	if !m.memory.tracked() {
		return m.standingStill(ctx, func() error { return m.write(ctx, dir) })
	}
	ram, err := os.OpenFile(filepath.Join(dir, ramFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = ram.Close() }()
	if err := m.before(ctx, ram); err != nil {
		return err
	}
	m.memory.lost = true // until all that Firecracker gives away is in since
	err = m.standingStill(ctx, func() error {
		if err := m.api.doWithin(ctx, snapshotLimit, createRequest(diffSnapshot)); err != nil {
			return err
		}
		return m.writeDisk(ctx, dir)
	})
	if err != nil {
		return err
	}
	if err := m.after(ctx, ram); err != nil {
		return err
	}
	m.memory.lost = false
	if err := ram.Chmod(0o444); err != nil {
		return err
	}
	return m.take(ctx, stateFile, filepath.Join(dir, stateFile), snapshots.MaxState)
}

// before gives ram what the memory was at the snapshot before.
func (m *machine) before(ctx context.Context, ram *os.File) error {
	if err := disk.Clone(ctx, ram, m.memory.base); err != nil {
		return err
	}
	if m.memory.since == nil {
		f, err := os.CreateTemp(m.cell.dir, "since-*")
		if err != nil {
			return err
		}
		m.memory.since = f
		return errors.Join(os.Remove(f.Name()), f.Truncate(m.memorySize()))
	}
	return disk.Overlay(ctx, ram, m.memory.since, m.memorySize())
}

// after puts what Firecracker has written over what was before.
func (m *machine) after(ctx context.Context, ram *os.File) error {
	written, err := openWritten(m.cell.outDir, ramFile, m.owner, m.memorySize())
	if err != nil {
		return err
	}
	defer func() { _ = written.Close() }()
	st, err := written.Stat()
	if err != nil {
		return err
	}
	if err := m.checkMemory(st.Size()); err != nil {
		return err
	}
	return errors.Join(disk.Overlay(ctx, ram, written, m.memorySize()), disk.Overlay(ctx, m.memory.since, written, m.memorySize()))
}
