package firecracker

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/snapshots"
)

// memory describes the known base of a machine's memory, so that a snapshot of the running machine
// writes only the guest's writes. Firecracker writes the pages that are dirty since its previous
// snapshot, or since the load, to a file with holes (docs/snapshotting/snapshot-support.md in its
// repository, "diff snapshots").
type memory struct {
	base *os.File // the file that the machine was loaded from; nil: it was booted
	// the pages written until the latest snapshot, else holes; unnamed; nil: no snapshot yet
	since *os.File
	lost  bool // Firecracker may have cleared pages that since lacks
	holes func() bool
}

// tracked reports whether a difference can be taken.
func (m *memory) tracked() bool { return m.base != nil && !m.lost && m.holes() }

func (m *memory) close() {
	for _, f := range []*os.File{m.base, m.since} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// keepsHoles reports whether the holes of Firecracker's differences can be read in the folder where
// they are written.
func (s *Substrate) keepsHoles() bool {
	dir, err := s.home.MkdirAll(cellsDir)
	return err == nil && disk.KeepsHoles(dir)
}

// writeLive saves the state, the memory and the scratch disk of the machine to the folder dir. The
// guest is paused only while Firecracker writes and the disk is copied.
func (m *machine) writeLive(ctx context.Context, dir string) error {
	defer m.dropWritten()
	if !m.memory.tracked() {
		return m.standingStill(ctx, func() error { return m.write(ctx, dir) })
	}
	ram, err := snapshots.Create(dir, ramFile)
	if err != nil {
		return err
	}
	defer ram.Close()
	if err := m.before(ctx, ram); err != nil {
		return err
	}
	m.memory.lost = true // until since contains everything that Firecracker clears
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

// before writes the memory at the previous snapshot to ram.
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

// after applies Firecracker's writes.
func (m *machine) after(ctx context.Context, ram *os.File) error {
	written, err := openWritten(m.cell.outDir, ramFile, m.owner, m.memorySize())
	if err != nil {
		return err
	}
	defer written.Close()
	st, err := written.Stat()
	if err != nil {
		return err
	}
	if err := m.checkMemory(st.Size()); err != nil {
		return err
	}
	return errors.Join(disk.Overlay(ctx, ram, written, m.memorySize()),
		disk.Overlay(ctx, m.memory.since, written, m.memorySize()))
}
