package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/stamp"
	"turnstone.dev/turnstone/substrate"
)

// identity is everything that must be the same for a snapshot to fit: a restore
// on anything else would be undefined behaviour of the guest.
type identity struct {
	Format    int              `json:"format"`
	QEMU      string           `json:"qemu"` // version text of the binary
	Accel     accel            `json:"accel"`
	CPUModel  string           `json:"cpuModel"`
	HostCPU   turnstone.Digest `json:"hostCpu"` // of the CPU's model and flags
	Arguments turnstone.Digest `json:"arguments"`
	Kernel    turnstone.Digest `json:"kernel"`
	Init      turnstone.Digest `json:"init"`
	Root      turnstone.Digest `json:"root"`
	Shape     turnstone.Shape  `json:"shape"`
}

const snapshotFormat = 1

// key names the snapshot's folder.
func (id identity) key() string {
	b, _ := json.Marshal(id) // plain data always encodes
	return turnstone.DigestBytes(b).Hex()[:32]
}

// A manifest describes a snapshot on disk. The device state is checked against
// its digest at each start. Hashing the memory would take longer than the start:
// its stamp tells whether anything was written to it, and then the digest decides.
type manifest struct {
	Identity identity         `json:"identity"`
	Taken    time.Time        `json:"taken"`
	State    turnstone.Digest `json:"state"`
	RAM      stamp.Stamp      `json:"ram"`
	Scratch  stamp.Stamp      `json:"scratch"`
}

const (
	ramFile      = "ram"
	scratchFile  = "scratch"
	stateFile    = "state"
	manifestFile = "manifest.json"
)

// snapshot is one that was checked: its memory open, its device state read.
type snapshot struct {
	ram     *os.File
	state   []byte
	scratch string // path of the scratch disk as it was; it is copied for each clone
}

// openSnapshot returns the snapshot in dir if it is id's and whole. A snapshot
// that is not there is fs.ErrNotExist; one that must not be used is an error of
// kind Integrity.
func openSnapshot(ctx context.Context, dir string, id identity) (*snapshot, error) {
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	damaged := func(what string, err error) error {
		return &turnstone.Error{Op: "qemu.snapshot", Kind: turnstone.Integrity, Subject: dir, Err: fmt.Errorf("%s: %w", what, err)}
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, damaged("manifest", err)
	}
	if m.Identity != id {
		return nil, damaged("manifest", errors.New("was taken of another machine"))
	}
	state, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, damaged("device state", err)
	}
	if turnstone.DigestBytes(state) != m.State {
		return nil, damaged("device state", errors.New("does not match its digest"))
	}
	path, scratch := filepath.Join(dir, ramFile), filepath.Join(dir, scratchFile)
	if _, err := m.RAM.Check(ctx, path); err != nil {
		return nil, damaged("memory", err)
	}
	if !m.Scratch.Fresh(scratch) { // its size is mostly holes, too long to hash: a touched one is not used
		return nil, damaged("scratch disk", errors.New("was touched"))
	}
	ram, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, damaged("memory", err)
	}
	return &snapshot{ram: ram, state: state, scratch: scratch}, nil
}

// ensureSnapshot returns the snapshot of m, which it takes where there is none
// that fits and is whole. Two processes that want the same one take it once.
func (s *Substrate) ensureSnapshot(ctx context.Context, m substrate.Machine, id identity) (*snapshot, error) {
	base, err := s.home.MkdirAll("snapshots")
	if err != nil {
		return nil, err
	}
	sweep(base)
	dir := filepath.Join(base, id.key())
	if snap, err := openSnapshot(ctx, dir, id); err == nil {
		now := time.Now()
		_ = os.Chtimes(filepath.Join(dir, manifestFile), now, now) // when it was used last, for removeSuperseded
		return snap, nil
	}
	lock, err := home.Acquire(ctx, dir+".lock", func() { s.progress("waiting for another turn to take the snapshot") })
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	snap, err := openSnapshot(ctx, dir, id)
	if err == nil {
		return snap, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		s.progress("rebuilding a snapshot that cannot be used (" + err.Error() + ")")
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	s.progress("taking the snapshot (" + s.Isolation() + ")")
	if err := s.takeSnapshot(ctx, m, id, dir); err != nil {
		return nil, fmt.Errorf("taking the snapshot: %w", err)
	}
	s.removeSuperseded(base, id)
	return openSnapshot(ctx, dir, id)
}

// newPrefix begins the name of a folder in which a snapshot is being taken; the
// key of the snapshot follows, whose lock is held meanwhile.
const newPrefix = ".new-"

// sweep removes what processes left behind that were killed while they took a
// snapshot.
func sweep(base string) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), newPrefix)
		if !ok {
			continue
		}
		key, _, _ := strings.Cut(rest, "-")
		lock, err := home.TryAcquire(filepath.Join(base, key+".lock"))
		if lock == nil || err != nil {
			continue // it is being taken right now
		}
		_ = os.RemoveAll(filepath.Join(base, e.Name()))
		lock.Release()
	}
}

// takeSnapshot boots m with its memory in a file, stops it when the agent is
// ready, and writes the device state next to it. The scratch disk is mounted by
// then and becomes part of the snapshot: mounting it in each clone would cost more
// than the rest of the start. The folder appears whole or not
// at all.
func (s *Substrate) takeSnapshot(ctx context.Context, m substrate.Machine, id identity, dir string) (err error) {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	ram, err := os.OpenFile(filepath.Join(tmp, ramFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = ram.Close() }()
	scratch, err := os.OpenFile(filepath.Join(tmp, scratchFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = scratch.Close() }()
	if err := s.blankScratch(ctx, scratch, m.Shape.Disk); err != nil {
		return err
	}
	state, err := s.bootAndSave(ctx, m, ram, scratch)
	if err != nil {
		return err
	}
	man := manifest{Identity: id, Taken: time.Now().UTC(), State: turnstone.DigestBytes(state)}
	if err := errors.Join(ram.Sync(), scratch.Sync()); err != nil {
		return err
	}
	if man.RAM, err = stamp.Of(ctx, ram.Name()); err != nil {
		return err
	}
	if man.Scratch, err = stamp.Quick(scratch.Name()); err != nil {
		return err
	}
	if err := stamp.WriteFile(filepath.Join(tmp, stateFile), state, 0o600); err != nil {
		return err
	}
	b, err := json.MarshalIndent(man, "", "  ")
	if err != nil {
		return err
	}
	if err := stamp.WriteFile(filepath.Join(tmp, manifestFile), b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// bootLimit bounds a boot under TCG on a busy machine; a boot takes seconds.
const bootLimit = 3 * time.Minute

// maxState bounds the device state, which is some hundred KiB.
const maxState = 64 << 20

func (s *Substrate) bootAndSave(ctx context.Context, m substrate.Machine, ram, scratch *os.File) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	defer func() { _ = w.Close() }()
	vm, err := s.boot(m, ram, scratch)
	if err != nil {
		return nil, err
	}
	defer func() { _ = vm.Close() }()
	if err := vm.wait(ctx, vm.ready, bootLimit); err != nil {
		return nil, err
	}
	type read struct {
		b   []byte
		err error
	}
	got := make(chan read, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(r, maxState))
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
	_ = vm.Close() // with it the last writer of the pipe is gone
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

// unused is how long a snapshot is kept that no sandbox starts from.
const unused = 30 * 24 * time.Hour

// removeSuperseded removes the snapshots that differ from id only in what has
// been replaced: the agent, the kernel or QEMU; and those that were not used for
// a month, as of a template that is no more. A machine that still runs from one
// keeps its mapping.
func (s *Substrate) removeSuperseded(base string, id identity) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		b, err := os.ReadFile(filepath.Join(dir, manifestFile))
		var m manifest
		if err != nil || json.Unmarshal(b, &m) != nil || m.Identity == id {
			continue
		}
		st, err := os.Stat(filepath.Join(dir, manifestFile))
		old := err == nil && time.Since(st.ModTime()) > unused
		if old || m.Identity.Root == id.Root && m.Identity.Shape == id.Shape && m.Identity.Accel == id.Accel {
			remove(dir)
		}
	}
}

// remove removes a snapshot, unless somebody is about to use it.
func remove(dir string) {
	lock, err := home.TryAcquire(dir + ".lock")
	if lock == nil || err != nil {
		return
	}
	defer lock.Release()
	_ = os.RemoveAll(dir)
	_ = os.Remove(dir + ".lock")
}
