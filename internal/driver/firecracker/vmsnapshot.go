package firecracker

import (
	"context"
	"errors"
	"net/http"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

type vmManifest = snapshots.Live[identity]

// Snapshot implements substrate.Snapshotter. For the amount of written data see memory.
func (m *machine) Snapshot(ctx context.Context, dir string) error {
	return m.NotSnapshotted(ctx, "firecracker.snapshot", dir, m.snapshot(ctx, dir))
}

func (m *machine) snapshot(ctx context.Context, dir string) error {
	if m.rooted != nil {
		return m.rooted
	}
	if m.origin.home {
		return snapshots.HasHome("firecracker.snapshot", m.ID())
	}
	m.snapping.Lock()
	defer m.snapping.Unlock()
	if m.Closed() {
		return turnstone.Errorf("firecracker.snapshot", turnstone.KindDead, string(m.ID()),
			"the sandbox is closed")
	}
	return snapshots.Virtual.Write(dir, func(tmp string) error {
		if err := m.writeLive(ctx, tmp); err != nil {
			return err
		}
		state, err := digestState(snapshotIn(tmp).state)
		if err != nil {
			return err
		}
		man := vmManifest{Identity: m.origin.id, Taken: time.Now().UTC(), State: state}
		return man.Seal(tmp, m.origin.layers)
	})
}

// standingStill calls f while the guest's CPUs are paused. The snapshot that f takes resets the
// machine's vsock, so the machine gets a new connection when it resumes.
func (m *machine) standingStill(ctx context.Context, f func() error) (err error) {
	var info instanceInfo
	if err := m.api.do(ctx, http.MethodGet, "/", nil, &info); err != nil {
		return err
	}
	if info.State == stateRunning {
		began := time.Now()
		if err := m.Pause(ctx); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, m.Resume(context.WithoutCancel(ctx)))
			m.stood = time.Since(began)
		}()
	}
	m.severed.Store(true)
	return f()
}

// RestoreFrom implements substrate.Resumer.
func (s *Substrate) RestoreFrom(ctx context.Context, m substrate.Machine,
	dir string) (substrate.Sandbox, error) {
	if err := s.release.standstill(); err != nil {
		return nil, err
	}
	man, err := s.openVM(m, dir)
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	m = man.On(m)
	vm, err := s.load(ctx, m, snapshotIn(dir))
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	return vm, nil
}

// openVM reads a Snapshot's files, if they are intact and a machine that is started from m can
// resume from them.
func (s *Substrate) openVM(m substrate.Machine, dir string) (vmManifest, error) {
	man, _, err := snapshots.OpenLive("firecracker.restore", dir,
		func(id identity) string { return id.differs(s.identity(m)) })
	return man, err
}
