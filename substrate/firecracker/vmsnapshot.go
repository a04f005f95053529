package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/stamp"
	"turnstone.dev/turnstone/substrate"
)

// vmFormat is the version of a vmManifest.
const vmFormat = 1

// A vmManifest describes a machine that was written down while it ran. Its files are
// held to their stamps: such a folder is used soon and thrown away.
type vmManifest struct {
	Format   int              `json:"format"`
	Identity identity         `json:"identity"` // of the machine that it was started from
	Taken    time.Time        `json:"taken"`
	State    turnstone.Digest `json:"state"`
	RAM      stamp.Stamp      `json:"ram"`
	Scratch  stamp.Stamp      `json:"scratch"`
	Layers   []vmLayer        `json:"layers,omitempty"`
}

// A vmLayer is an image that the machine has as a disk.
type vmLayer struct {
	Path  string      `json:"path"`
	Stamp stamp.Stamp `json:"stamp"`
}

// Snapshot implements substrate.Snapshotter. All of the memory is written: Firecracker's
// difference against what a clone was loaded from is in developer preview.
func (m *machine) Snapshot(ctx context.Context, dir string) error {
	err := m.snapshot(ctx, dir)
	if err == nil {
		return nil
	}
	err = m.why(err)
	var e *turnstone.Error
	if errors.As(err, &e) {
		return err
	}
	e = &turnstone.Error{Op: "firecracker.snapshot", Kind: turnstone.Unavailable, Subject: string(m.id), Err: err}
	switch {
	case ctx.Err() != nil:
		e.Kind = turnstone.Canceled
	case isNoSpace(err):
		e.Kind, e.Hint = turnstone.Exhausted, "make room on the disk that holds "+filepath.Dir(dir)
	}
	return e
}

func (m *machine) snapshot(ctx context.Context, dir string) (err error) {
	if m.origin.home {
		return &turnstone.Error{Op: "firecracker.snapshot", Kind: turnstone.Invalid, Subject: string(m.id),
			Err: errors.New("it has a home disk, which has one writer at a time"), Hint: "a sandbox with a home is not cloned as it runs"}
	}
	m.snapping.Lock()
	defer m.snapping.Unlock()
	if m.isClosed() {
		return &turnstone.Error{Op: "firecracker.snapshot", Kind: turnstone.Dead, Subject: string(m.id), Err: errors.New("the sandbox is closed")}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := m.standingStill(ctx, func() error { return m.write(ctx, tmp) }); err != nil {
		return err
	}
	man := vmManifest{Format: vmFormat, Identity: m.origin.id, Taken: time.Now().UTC()}
	if err := man.describe(tmp, m.origin.layers); err != nil {
		return err
	}
	b, err := json.MarshalIndent(man, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, manifestFile), b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

func (m *machine) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// describe says in man what is in the folder, and which layers the machine has.
func (man *vmManifest) describe(dir string, layers []string) (err error) {
	snap := snapshotIn(dir)
	if man.State, err = digestState(snap.state); err != nil {
		return err
	}
	if man.RAM, err = stamp.Quick(snap.ram); err != nil {
		return err
	}
	if man.Scratch, err = stamp.Quick(snap.scratch); err != nil {
		return err
	}
	for _, path := range layers {
		st, err := stamp.Quick(path)
		if err != nil {
			return err
		}
		man.Layers = append(man.Layers, vmLayer{path, st})
	}
	return nil
}

// standingStill calls f while the guest's CPUs stand still. The snapshot that f takes
// resets the machine's vsock, so it gets a new connection when it goes on.
func (m *machine) standingStill(ctx context.Context, f func() error) (err error) {
	var info instanceInfo
	if err := m.api.do(ctx, http.MethodGet, "/", nil, &info); err != nil {
		return err
	}
	if info.State == stateRunning {
		if err := m.Pause(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Resume(context.WithoutCancel(ctx))) }()
	}
	m.mu.Lock()
	m.severed = true
	m.mu.Unlock()
	return f()
}

// RestoreFrom implements substrate.Resumer.
func (s *Substrate) RestoreFrom(ctx context.Context, m substrate.Machine, dir string) (substrate.Sandbox, error) {
	man, err := s.openVM(m, dir)
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	m.Layers, m.Home = nil, ""
	for _, l := range man.Layers {
		m.Layers = append(m.Layers, l.Path)
	}
	vm, err := s.load(ctx, m, snapshotIn(dir))
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	return vm, nil
}

// openVM reads what Snapshot has written, if it is whole and a machine that is started
// from m can go on from it.
func (s *Substrate) openVM(m substrate.Machine, dir string) (man vmManifest, err error) {
	damaged := func(what string, err error) (vmManifest, error) {
		return man, &turnstone.Error{Op: "firecracker.restore", Kind: turnstone.Integrity, Subject: dir, Err: fmt.Errorf("%s: %w", what, err),
			Hint: "the saved machine cannot be used; start from its files instead"}
	}
	b, err := readAtMost(filepath.Join(dir, manifestFile), maxManifest)
	if err != nil {
		return damaged("manifest", err)
	}
	if err := json.Unmarshal(b, &man); err != nil {
		return damaged("manifest", err)
	}
	if man.Format != vmFormat {
		return man, &turnstone.Error{Op: "firecracker.restore", Kind: turnstone.Unavailable, Subject: dir,
			Err: fmt.Errorf("it has format %d, this program reads %d", man.Format, vmFormat), Hint: "use the version of turn that wrote it"}
	}
	if why := man.Identity.differs(s.identity(m)); why != "" {
		return man, &turnstone.Error{Op: "firecracker.restore", Kind: turnstone.Unavailable, Subject: "the saved machine",
			Err: errors.New("it was saved with another " + why), Hint: "a machine goes on only where all of that is the same; start from its files instead"}
	}
	snap := snapshotIn(dir)
	if err := checkState(snap.state, man.State); err != nil {
		return damaged("device state", err)
	}
	if !man.RAM.Fresh(snap.ram) {
		return damaged("memory", errors.New("was touched"))
	}
	if !man.Scratch.Fresh(snap.scratch) {
		return damaged("scratch disk", errors.New("was touched"))
	}
	if len(man.Layers) > substrate.MaxLayers {
		return damaged("layers", fmt.Errorf("there are %d", len(man.Layers)))
	}
	for _, layer := range man.Layers {
		if !layer.Stamp.Fresh(layer.Path) {
			return damaged("layer "+layer.Path, errors.New("was touched or is gone"))
		}
	}
	return man, nil
}
