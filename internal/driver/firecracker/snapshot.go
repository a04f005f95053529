package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

// identity contains all properties that must match for a snapshot to fit. Firecracker requires "a
// software and hardware configuration which is identical", including the host's kernel
// (docs/snapshotting/snapshot-support.md in its repository).
type identity struct {
	Substrate  string           `json:"substrate"` // other substrates use the same folder
	Format     int              `json:"format"`
	Version    string           `json:"version"`
	HostCPU    turnstone.Digest `json:"hostCpu"`
	HostKernel string           `json:"hostKernel"`
	Config     turnstone.Digest `json:"config"` // digest of the requests that created the machine
	Kernel     turnstone.Digest `json:"kernel"`
	OwnKernel  bool             `json:"ownKernel,omitempty"` // it is the user's choice
	Init       turnstone.Digest `json:"init"`
	Root       turnstone.Digest `json:"root"`
	Shape      turnstone.Shape  `json:"shape"`
}

const snapshotFormat = 1

func (s *Substrate) identity(m substrate.Machine) identity {
	config, _ := json.Marshal(s.bootRequests(m.Shape)) // plain data always encodes
	return identity{Substrate: s.Name(), Format: snapshotFormat, Version: s.version,
		HostCPU: s.hostCPU, HostKernel: s.kernel,
		Config: turnstone.DigestBytes(config), Kernel: m.KernelDigest, OwnKernel: m.KernelIs.Own,
		Init: m.InitDigest, Root: m.RootDigest, Shape: m.Shape}
}

// key names the snapshot's folder.
func (id identity) key() string { return snapshots.Key(id) }

// differs names the first property in which id and other differ; "" if there is none.
func (id identity) differs(other identity) string {
	return snapshots.Differs(id == other,
		snapshots.Part{What: fmt.Sprintf("substrate (%s)", host.Clip(id.Substrate)),
			Was: id.Substrate, Now: other.Substrate, Bare: true},
		snapshots.Part{What: "Firecracker", Was: id.Version, Now: other.Version},
		snapshots.Part{What: "CPU", Was: string(id.HostCPU), Now: string(other.HostCPU),
			Bare: true},
		snapshots.Part{What: "host kernel", Was: id.HostKernel, Now: other.HostKernel},
		snapshots.Shapes(id.Shape, other.Shape),
		snapshots.Digests("guest kernel", id.Kernel, other.Kernel),
		snapshots.Agents(id.Init, other.Init),
		snapshots.Roots(id.Root, other.Root))
}

type manifest = snapshots.Manifest[identity]

// The files of a snapshot.
const (
	ramFile      = snapshots.RAMFile
	scratchFile  = snapshots.ScratchFile
	stateFile    = snapshots.StateFile
	manifestFile = snapshots.ManifestFile
)

// snapshot is a verified snapshot: the paths of its files.
type snapshot struct{ ram, state, scratch string }

func snapshotIn(dir string) snapshot {
	return snapshot{filepath.Join(dir, ramFile), filepath.Join(dir, stateFile),
		filepath.Join(dir, scratchFile)}
}

// openSnapshot returns the snapshot in dir if it is id's and intact. A missing snapshot is
// fs.ErrNotExist; an unusable snapshot is an error of kind Integrity.
func openSnapshot(ctx context.Context, dir string, id identity) (snapshot, error) {
	_, err := snapshots.Open(ctx, "firecracker.snapshot", dir, id)
	return snapshotIn(dir), err
}

// ensureSnapshot returns the snapshot of m, and takes it if no fitting, intact snapshot exists. Two
// processes that want the same snapshot take it once.
func (s *Substrate) ensureSnapshot(ctx context.Context, m substrate.Machine,
	id identity) (snapshot, error) {
	return snapshots.Ensure(ctx, snapshots.Virtual, snapshots.Want[snapshot]{
		Home: s.home, Key: id.key(), Progress: s.progress, How: s.Name(),
		Open:  func(dir string) (snapshot, error) { return openSnapshot(ctx, dir, id) },
		Fill:  func(tmp string) error { return s.fillSnapshot(ctx, m, id, tmp) },
		Taken: func(base string) { removeSuperseded(base, id) },
	})
}

// fillSnapshot boots m, pauses it when the agent is ready, and stores Firecracker's snapshot.
func (s *Substrate) fillSnapshot(ctx context.Context, m substrate.Machine, id identity,
	tmp string) error {
	vm, err := s.boot(ctx, m)
	if err != nil {
		return err
	}
	defer vm.Close()
	if err := vm.wait(ctx, kvm.Patience()); err != nil {
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
	if err := syncFile(snapshotIn(tmp).scratch); err != nil {
		return err
	}
	man := manifest{Identity: id, Taken: time.Now().UTC()}
	if man.State, err = digestState(snapshotIn(tmp).state); err != nil {
		return err
	}
	return man.Seal(ctx, tmp)
}

// syncFile makes sure that a file is on disk.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func digestState(path string) (turnstone.Digest, error) {
	b, err := snapshots.ReadAtMost(path, snapshots.MaxState)
	if err != nil {
		return "", err
	}
	return turnstone.DigestBytes(b), nil
}

// write saves the state, the memory and the scratch disk of the machine, which is paused, to the
// folder dir. The caller then owns Firecracker's two files, and everyone may read them: the folder
// is private, and a clone's Firecracker may run as another user.
func (m *machine) write(ctx context.Context, dir string) error {
	defer m.dropWritten()
	if err := m.api.doWithin(ctx, snapshotLimit, createRequest(fullSnapshot)); err != nil {
		return err
	}
	if err := m.take(ctx, stateFile, filepath.Join(dir, stateFile),
		snapshots.MaxState); err != nil {
		return err
	}
	if err := m.takeMemory(ctx, dir); err != nil {
		return err
	}
	return m.writeDisk(ctx, dir)
}

// takeMemory takes the complete memory file that Firecracker has written.
func (m *machine) takeMemory(ctx context.Context, dir string) error {
	path := filepath.Join(dir, ramFile)
	if err := m.take(ctx, ramFile, path, m.memorySize()); err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	return m.checkMemory(st.Size())
}

// dropWritten removes Firecracker's files of a snapshot.
func (m *machine) dropWritten() {
	for _, name := range []string{ramFile, stateFile} {
		_ = unix.Unlinkat(int(m.cell.outDir.Fd()), name, 0)
	}
}

// writeDisk copies the scratch disk into the folder dir. It does not wait until the copy is on
// disk: a snapshot of a running machine is used soon and then removed, and the guest is paused.
func (m *machine) writeDisk(ctx context.Context, dir string) error {
	f, err := snapshots.Create(dir, scratchFile)
	if err != nil {
		return err
	}
	return errors.Join(disk.Clone(ctx, f, m.scratch), f.Close())
}

// memorySize returns the size of the machine's memory, in bytes.
func (m *machine) memorySize() int64 { return mebibytes(m.origin.id.Shape.Memory) << 20 }

// checkMemory checks that a memory file of size bytes is the complete memory of the machine.
func (m *machine) checkMemory(size int64) error {
	if want := m.memorySize(); size != want {
		return fmt.Errorf("firecracker has written %d of the %d bytes of the memory", size, want)
	}
	return nil
}

// removeSuperseded removes Firecracker's snapshots that differ from id only in replaced parts (the
// agent, Turnstone's kernel, Firecracker, the host's kernel), and snapshots that were unused for a
// month. A user's kernel replaces none: the user may alternate between kernels.
func removeSuperseded(base string, id identity) {
	snapshots.RemoveSuperseded(snapshots.Virtual, base, func(m manifest) snapshots.Verdict {
		switch other := m.Identity; {
		case other == id || other.Substrate != id.Substrate:
			return snapshots.Keep
		case other.Root == id.Root && other.Shape == id.Shape && (other.Kernel == id.Kernel ||
			!other.OwnKernel && !id.OwnKernel):
			return snapshots.Replaced
		}
		return snapshots.MayAge
	})
}
