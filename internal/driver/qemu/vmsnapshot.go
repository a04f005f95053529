package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.Snapshotter = (*machine)(nil)
	_ substrate.Resumer     = (*Substrate)(nil)
)

type vmManifest = snapshots.Live[identity]

// Snapshot implements substrate.Snapshotter.
func (m *machine) Snapshot(ctx context.Context, dir string) error {
	err := m.NotSnapshotted(ctx, "qemu.snapshot", dir, m.snapshot(ctx, dir))
	var e *turnstone.Error
	if errors.As(err, &e) && e.Hint == "" && errors.Is(err, os.ErrPermission) {
		e.Hint = "turn must be allowed to read the memory of its own children (ptrace): see " +
			"kernel.yama.ptrace_scope, which must be 0 or 1"
	}
	return err
}

func (m *machine) snapshot(ctx context.Context, dir string) error {
	l := m.live
	if l == nil {
		return errors.New("its origin is unknown")
	}
	if l.home {
		return snapshots.HasHome("qemu.snapshot", m.ID())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return snapshots.Virtual.Write(dir, func(tmp string) error {
		man := vmManifest{Identity: l.id}
		if err := m.standingStill(ctx,
			func() error { return m.write(ctx, tmp, &man) }); err != nil {
			return err
		}
		return man.Seal(tmp, l.layers)
	})
}

// standingStill calls f while the guest's CPUs are paused.
func (m *machine) standingStill(ctx context.Context, f func() error) (err error) {
	running, err := m.running(ctx)
	if err != nil {
		return err
	}
	if running {
		if err := m.Pause(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Resume(context.WithoutCancel(ctx))) }()
	}
	return f()
}

// write writes the machine's three files into dir and describes them in man.
func (m *machine) write(ctx context.Context, dir string, man *vmManifest) error {
	man.Taken = time.Now().UTC()
	state, err := m.devices(ctx, filepath.Join(dir, stateFile))
	if err != nil {
		return err
	}
	man.State = turnstone.DigestBytes(state)
	ram, err := snapshots.Create(dir, ramFile)
	if err != nil {
		return err
	}
	defer ram.Close()
	if err := m.writeMemory(ctx, ram); err != nil {
		return err
	}
	scratch, err := snapshots.Create(dir, scratchFile)
	if err != nil {
		return err
	}
	defer scratch.Close()
	return disk.Clone(ctx, scratch, m.scratch)
}

// writeMemory writes the guest's memory to dst: the original memory, with the guest's writes
// applied.
func (m *machine) writeMemory(ctx context.Context, dst *os.File) error {
	if err := disk.Clone(ctx, dst, m.live.ram); err != nil {
		return err
	}
	if !m.live.shared {
		runs, err := privateMemory(ctx, m.PID(), m.live.ram)
		if err != nil {
			return err
		}
		if err := copyMemory(ctx, dst, m.PID(), runs); err != nil {
			return err
		}
	}
	return prepareMemory(dst, int64(m.live.id.Shape.Memory))
}

// RestoreFrom implements substrate.Resumer.
func (s *Substrate) RestoreFrom(ctx context.Context, m substrate.Machine,
	dir string) (substrate.Sandbox, error) {
	man, snap, err := s.openVM(m, dir)
	if err != nil {
		return nil, s.wrap(err)
	}
	m = man.On(m)
	f, err := s.restoreFiles(ctx, m, snap)
	if err != nil {
		return nil, s.wrap(err)
	}
	return s.launch(ctx, m, f, snap.state, bareState)
}

// openVM opens a Snapshot's files, if they are intact and a machine that is started from m can
// resume from them.
func (s *Substrate) openVM(m substrate.Machine, dir string) (vmManifest, *snapshot, error) {
	man, state, err := snapshots.OpenLive(restoreOp, dir,
		func(id identity) string { return id.differs(s.identity(m)) })
	if err != nil {
		return man, nil, err
	}
	ram, err := os.OpenFile(filepath.Join(dir, ramFile), os.O_RDWR, 0)
	if err != nil {
		return man, nil, snapshots.DamagedLive(restoreOp, dir, "memory", err)
	}
	return man, &snapshot{ram: ram, state: state, scratch: filepath.Join(dir, scratchFile)}, nil
}

// restoreOp is the operation in errors of resuming a saved machine.
const restoreOp = "qemu.restore"

// differs names the first property in which id and other differ; "" if there is none.
func (id identity) differs(other identity) string {
	return snapshots.Differs(id == other,
		snapshots.Part{What: "QEMU", Was: id.QEMU, Now: other.QEMU},
		snapshots.Part{What: "way of running guests", Was: string(id.Accel),
			Now: string(other.Accel)},
		snapshots.Part{What: "model of the guest's CPU", Was: id.CPUModel, Now: other.CPUModel},
		snapshots.Part{What: "CPU", Was: string(id.HostCPU), Now: string(other.HostCPU),
			Bare: true},
		snapshots.Shapes(id.Shape, other.Shape),
		snapshots.Digests("guest kernel", id.Kernel, other.Kernel),
		snapshots.Agents(id.Init, other.Init),
		snapshots.Roots(id.Root, other.Root))
}
