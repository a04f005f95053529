package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/substrate"
)

// identity contains all properties that must match for a snapshot to fit: a restore on anything
// else would be undefined behavior of the guest.
type identity struct {
	Format    int              `json:"format"`
	QEMU      string           `json:"qemu"` // version text of the binary
	Accel     accel            `json:"accel"`
	CPUModel  string           `json:"cpuModel"`
	HostCPU   turnstone.Digest `json:"hostCpu"` // digest of the CPU's model and flags
	Arguments turnstone.Digest `json:"arguments"`
	Kernel    turnstone.Digest `json:"kernel"`
	OwnKernel bool             `json:"ownKernel,omitempty"` // it is the user's choice
	Firmware  string           `json:"firmware,omitempty"`  // see engine.bios
	Init      turnstone.Digest `json:"init"`
	Root      turnstone.Digest `json:"root"`
	Shape     turnstone.Shape  `json:"shape"`
}

const snapshotFormat = 1

// key names the snapshot's folder.
func (id identity) key() string { return snapshots.Key(id) }

type manifest = snapshots.Manifest[identity]

// The files of a snapshot.
const (
	ramFile      = snapshots.RAMFile
	scratchFile  = snapshots.ScratchFile
	stateFile    = snapshots.StateFile
	manifestFile = snapshots.ManifestFile
)

// snapshot is a verified snapshot: its memory is open, its device state is read.
type snapshot struct {
	ram     *os.File
	state   []byte
	scratch string // path of the original scratch disk; each clone gets a copy
}

// openSnapshot returns the snapshot in dir if it is id's and intact. A missing snapshot is
// fs.ErrNotExist; an unusable snapshot is an error of kind Integrity.
func openSnapshot(ctx context.Context, dir string, id identity) (*snapshot, error) {
	const op = "qemu.snapshot"
	state, err := snapshots.Open(ctx, op, dir, id)
	if err != nil {
		return nil, err
	}
	ram, err := os.OpenFile(filepath.Join(dir, ramFile), os.O_RDWR, 0)
	if err != nil {
		return nil, snapshots.Damaged(op, dir, "memory", err)
	}
	return &snapshot{ram: ram, state: state, scratch: filepath.Join(dir, scratchFile)}, nil
}

// ensureSnapshot returns the snapshot of m, and takes it if no fitting, intact snapshot exists. Two
// processes that want the same snapshot take it once.
func (s *Substrate) ensureSnapshot(ctx context.Context, m substrate.Machine,
	id identity) (*snapshot, error) {
	return snapshots.Ensure(ctx, snapshots.Virtual, snapshots.Want[*snapshot]{
		Home: s.home, Key: id.key(), Progress: s.progress, How: s.Isolation(),
		Open:  func(dir string) (*snapshot, error) { return openSnapshot(ctx, dir, id) },
		Fill:  func(tmp string) error { return s.fillSnapshot(ctx, m, id, tmp) },
		Taken: func(base string) { removeSuperseded(base, id) },
	})
}

// fillSnapshot boots m with its memory in a file, pauses it when the agent is ready, and writes the
// device state beside the memory. The scratch disk is mounted by then and becomes part of the
// snapshot: mounting it in each clone would take longer than the rest of the start.
func (s *Substrate) fillSnapshot(ctx context.Context, m substrate.Machine, id identity,
	tmp string) error {
	ram, err := snapshots.Create(tmp, ramFile)
	if err != nil {
		return err
	}
	defer ram.Close()
	scratch, err := snapshots.Create(tmp, scratchFile)
	if err != nil {
		return err
	}
	defer scratch.Close()
	if err := s.blankScratch(ctx, scratch, m.Shape.Disk); err != nil {
		return err
	}
	state, err := s.bootAndSave(ctx, m, ram, scratch)
	if err != nil {
		return s.notStarted(err)
	}
	man := manifest{Identity: id, Taken: time.Now().UTC(), State: turnstone.DigestBytes(state)}
	if err := errors.Join(ram.Sync(), scratch.Sync()); err != nil {
		return err
	}
	if err := filestamp.WriteFile(filepath.Join(tmp, stateFile), state, 0o600); err != nil {
		return err
	}
	return man.Seal(ctx, tmp)
}

func (s *Substrate) bootAndSave(ctx context.Context, m substrate.Machine, ram,
	scratch *os.File) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	vm, err := s.boot(m, ram, scratch)
	if err != nil {
		return nil, err
	}
	defer vm.Close()
	if err := vm.wait(ctx, s.accel.patience()); err != nil {
		return nil, err
	}
	type read struct {
		b   []byte
		err error
	}
	got := make(chan read, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(r, snapshots.MaxState))
		got <- read{b, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := vm.mon.do(ctx, negotiate, passState(w), ignoreShared,
		command{Execute: "migrate", Arguments: stateURI}); err != nil {
		return nil, err
	}
	if err := vm.migrated(ctx); err != nil {
		return nil, err
	}
	_ = w.Close()
	_ = vm.Close() // closes the last writer of the pipe
	state := <-got
	return state.b, state.err
}

// migrated waits until the state has been written.
func (m *machine) migrated(ctx context.Context) error {
	for {
		v, err := m.mon.do(ctx, command{Execute: "query-migrate"})
		if err != nil {
			return err
		}
		var st struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := json.Unmarshal(v, &st); err != nil {
			return err
		}
		switch st.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("saving the device state: %s %s", st.Status, st.Error)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// removeSuperseded removes the snapshots that differ from id only in replaced parts (the agent,
// Turnstone's kernel or QEMU), and snapshots that were unused for a month. A user's kernel replaces
// none: the user may alternate between kernels.
func removeSuperseded(base string, id identity) {
	snapshots.RemoveSuperseded(snapshots.Virtual, base, func(m manifest) snapshots.Verdict {
		switch other := m.Identity; {
		case other == id:
			return snapshots.Keep
		case other.Root == id.Root && other.Shape == id.Shape && other.Accel == id.Accel &&
			(other.Kernel == id.Kernel || !other.OwnKernel && !id.OwnKernel):
			return snapshots.Replaced
		}
		return snapshots.MayAge
	})
}
