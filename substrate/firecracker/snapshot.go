package firecracker

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
	"turnstone.dev/turnstone/substrate/disk"
)

// identity is everything that must be the same for a snapshot to fit. Firecracker
// wants "a software and hardware configuration which is identical", the host's kernel
// included (docs/snapshotting/snapshot-support.md in its repository).
type identity struct {
	Substrate  string           `json:"substrate"` // other substrates keep theirs in the same folder
	Format     int              `json:"format"`
	Version    string           `json:"version"`
	HostCPU    turnstone.Digest `json:"hostCpu"`
	HostKernel string           `json:"hostKernel"`
	Config     turnstone.Digest `json:"config"` // of the requests that made the machine
	Kernel     turnstone.Digest `json:"kernel"`
	Init       turnstone.Digest `json:"init"`
	Root       turnstone.Digest `json:"root"`
	Shape      turnstone.Shape  `json:"shape"`
}

const snapshotFormat = 1

func (s *Substrate) identity(m substrate.Machine) identity {
	config, _ := json.Marshal(s.bootRequests(m.Shape)) // plain data always encodes
	return identity{Substrate: s.Name(), Format: snapshotFormat, Version: s.version, HostCPU: s.hostCPU, HostKernel: s.kernel,
		Config: turnstone.DigestBytes(config), Kernel: m.KernelDigest, Init: m.InitDigest, Root: m.RootDigest, Shape: m.Shape}
}

// key names the snapshot's folder.
func (id identity) key() string {
	b, _ := json.Marshal(id) // plain data always encodes
	return turnstone.DigestBytes(b).Hex()[:32]
}

// differs names the first thing in which id is not other; "" when there is none.
func (id identity) differs(other identity) string {
	switch {
	case id == other:
		return ""
	case id.Substrate != other.Substrate:
		return "substrate (" + printable(clip(id.Substrate, 40)) + ")"
	case id.Version != other.Version:
		return fmt.Sprintf("Firecracker (%s, now %s)", printable(clip(id.Version, 80)), other.Version)
	case id.HostCPU != other.HostCPU:
		return "CPU"
	case id.HostKernel != other.HostKernel:
		return "host kernel"
	case id.Shape != other.Shape:
		return "shape"
	case id.Kernel != other.Kernel:
		return "kernel"
	case id.Init != other.Init:
		return "agent"
	case id.Root != other.Root:
		return "template"
	}
	return "version of turn"
}

// A manifest describes a snapshot on disk. The device state is checked against its
// digest at each start; the memory is held to its stamp, and to its digest when that
// says that it was touched.
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

// What is read of a manifest and of a device state at most, in bytes; a state is some
// ten KiB.
const (
	maxManifest = 1 << 20
	maxState    = 64 << 20
)

// snapshot is one that was checked: paths of its files.
type snapshot struct{ ram, state, scratch string }

func snapshotIn(dir string) snapshot {
	return snapshot{filepath.Join(dir, ramFile), filepath.Join(dir, stateFile), filepath.Join(dir, scratchFile)}
}

// openSnapshot returns the snapshot in dir if it is id's and whole. One that is not
// there is fs.ErrNotExist; one that must not be used is an error of kind Integrity.
func openSnapshot(ctx context.Context, dir string, id identity) (snapshot, error) {
	snap := snapshotIn(dir)
	b, err := readAtMost(filepath.Join(dir, manifestFile), maxManifest)
	if err != nil {
		return snap, err
	}
	damaged := func(what string, err error) (snapshot, error) {
		return snap, &turnstone.Error{Op: "firecracker.snapshot", Kind: turnstone.Integrity, Subject: dir, Err: fmt.Errorf("%s: %w", what, err)}
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return damaged("manifest", err)
	}
	if m.Identity != id {
		return damaged("manifest", errors.New("was taken of another machine"))
	}
	if err := checkState(snap.state, m.State); err != nil {
		return damaged("device state", err)
	}
	if _, err := m.RAM.Check(ctx, snap.ram); err != nil {
		return damaged("memory", err)
	}
	if !m.Scratch.Fresh(snap.scratch) { // its size is mostly holes, too long to hash
		return damaged("scratch disk", errors.New("was touched"))
	}
	return snap, nil
}

func checkState(path string, want turnstone.Digest) error {
	state, err := readAtMost(path, maxState)
	if err != nil {
		return err
	}
	if turnstone.DigestBytes(state) != want {
		return errors.New("does not match its digest")
	}
	return nil
}

func readAtMost(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	return b, err
}

// ensureSnapshot returns the snapshot of m, which it takes where there is none that
// fits and is whole. Two processes that want the same one take it once.
func (s *Substrate) ensureSnapshot(ctx context.Context, m substrate.Machine, id identity) (snapshot, error) {
	base, err := s.home.MkdirAll("snapshots")
	if err != nil {
		return snapshot{}, err
	}
	sweepSnapshots(base)
	dir := filepath.Join(base, id.key())
	if snap, err := openSnapshot(ctx, dir, id); err == nil {
		now := time.Now()
		_ = os.Chtimes(filepath.Join(dir, manifestFile), now, now) // when it was used last, for removeSuperseded
		return snap, nil
	}
	lock, err := home.Acquire(ctx, dir+".lock", func() { s.progress("waiting for another turn to take the snapshot") })
	if err != nil {
		return snapshot{}, err
	}
	defer lock.Release()
	snap, err := openSnapshot(ctx, dir, id)
	if err == nil || ctx.Err() != nil {
		return snap, err
	}
	if !errors.Is(err, os.ErrNotExist) {
		s.progress("rebuilding a snapshot that cannot be used (" + err.Error() + ")")
	}
	if err := os.RemoveAll(dir); err != nil {
		return snapshot{}, err
	}
	s.progress("taking the snapshot (firecracker)")
	if err := s.takeSnapshot(ctx, m, id, dir); err != nil {
		return snapshot{}, fmt.Errorf("taking the snapshot: %w", err)
	}
	s.removeSuperseded(base, id)
	return openSnapshot(ctx, dir, id)
}

// newPrefix begins the name of a folder in which a snapshot is being taken; the key of
// the snapshot follows, whose lock is held meanwhile. (Package qemu has the same.)
const newPrefix = ".new-"

// sweepSnapshots removes what processes left that were killed while they took one.
func sweepSnapshots(base string) {
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

// takeSnapshot boots m, stops it when the agent is ready, and keeps what Firecracker
// writes. The folder appears whole or not at all.
func (s *Substrate) takeSnapshot(ctx context.Context, m substrate.Machine, id identity, dir string) (err error) {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	vm, err := s.boot(ctx, m)
	if err != nil {
		return err
	}
	defer func() { _ = vm.Close() }()
	if err := vm.wait(ctx, vm.ready, bootLimit); err != nil {
		return err
	}
	if err := vm.api.send(ctx, stateRequest(statePaused)); err != nil {
		return vm.why(err)
	}
	if err := vm.write(ctx, tmp); err != nil {
		return vm.why(err)
	}
	if err := vm.Close(); err != nil {
		return err
	}
	man := manifest{Identity: id, Taken: time.Now().UTC()}
	snap := snapshotIn(tmp)
	if man.State, err = digestState(snap.state); err != nil {
		return err
	}
	if man.RAM, err = stamp.Of(ctx, snap.ram); err != nil {
		return err
	}
	if man.Scratch, err = stamp.Quick(snap.scratch); err != nil {
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

func digestState(path string) (turnstone.Digest, error) {
	b, err := readAtMost(path, maxState)
	if err != nil {
		return "", err
	}
	return turnstone.DigestBytes(b), nil
}

// write puts the state, the memory and the scratch disk of the machine, which stands
// still, into the folder dir. Both that Firecracker has written are then the caller's
// alone, and everyone may read them: the folder is private, and the Firecracker of a
// clone may be somebody else.
func (m *machine) write(ctx context.Context, dir string) error {
	defer func() { _, _ = os.Remove(m.cell.out(ramFile)), os.Remove(m.cell.out(stateFile)) }()
	if err := m.api.doWithin(ctx, snapshotLimit, createRequest()); err != nil {
		return err
	}
	for _, name := range []string{ramFile, stateFile} {
		if err := take(ctx, m.cell.out(name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := m.checkMemory(filepath.Join(dir, ramFile)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, scratchFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(disk.Clone(ctx, f, m.scratch), f.Sync(), f.Close())
}

// checkMemory makes sure that a memory file is all of the machine's memory.
func (m *machine) checkMemory(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if want := mebibytes(m.origin.id.Shape.Memory) << 20; st.Size() != want {
		return fmt.Errorf("firecracker has written %d of the %d bytes of the memory", st.Size(), want)
	}
	return nil
}

// take moves a file that Firecracker has written, whose owner may be another, to dst.
func take(ctx context.Context, src, dst string) (err error) {
	st, err := os.Lstat(src)
	if err != nil {
		return fmt.Errorf("firecracker has not written its snapshot: %w", err)
	}
	if !st.Mode().IsRegular() {
		return errors.New("firecracker has written a snapshot that is no file")
	}
	var f *os.File
	if os.Rename(src, dst) == nil {
		f, err = os.OpenFile(dst, os.O_RDWR, 0)
	} else { // on another file system
		f, err = copyFile(ctx, dst, src, 0o600)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if os.Geteuid() == 0 {
		if err := f.Chown(0, 0); err != nil {
			return err
		}
	}
	if err := digHoles(ctx, f); err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o444), f.Sync())
}

// unused is how long a snapshot is kept that no sandbox starts from.
const unused = 30 * 24 * time.Hour

// removeSuperseded removes the snapshots of Firecracker's that differ from id only in
// what has been replaced, and those that were not used for a month.
func (s *Substrate) removeSuperseded(base string, id identity) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		path := filepath.Join(dir, manifestFile)
		b, err := readAtMost(path, maxManifest)
		var m manifest
		if err != nil || json.Unmarshal(b, &m) != nil || m.Identity.Substrate != id.Substrate || m.Identity == id {
			continue
		}
		st, err := os.Stat(path)
		old := err == nil && time.Since(st.ModTime()) > unused
		if old || m.Identity.Root == id.Root && m.Identity.Shape == id.Shape {
			removeSnapshot(dir)
		}
	}
}

// removeSnapshot removes a snapshot, unless somebody is about to use it. A machine that
// still runs from it keeps its mapping.
func removeSnapshot(dir string) {
	lock, err := home.TryAcquire(dir + ".lock")
	if lock == nil || err != nil {
		return
	}
	defer lock.Release()
	_ = os.RemoveAll(dir)
	_ = os.Remove(dir + ".lock")
}
