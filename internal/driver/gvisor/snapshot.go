package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/substrate"
)

// identity contains all properties that must match for a checkpoint to fit.
type identity struct {
	Format int              `json:"format"`
	Runsc  turnstone.Digest `json:"runsc"` // digest of the program
	// digest of the container's configuration, without paths of images
	Spec    turnstone.Digest `json:"spec"`
	HostCPU turnstone.Digest `json:"hostCpu"` // digest of the CPU's model and flags
	Kernel  string           `json:"kernel"`  // release of the host's kernel
	Agent   turnstone.Digest `json:"agent"`
	Root    turnstone.Digest `json:"root"`
	Shape   turnstone.Shape  `json:"shape"`
}

const snapshotFormat = 1

func (s *Substrate) identity(m substrate.Machine) (identity, error) {
	b, err := spec("/", imagePaths{}, m.Shape)
	return identity{Format: snapshotFormat, Runsc: s.program.Binary.Digest,
		Spec: turnstone.DigestBytes(b), HostCPU: s.hostCPU,
		Kernel: s.kernel, Agent: m.AgentDigest, Root: m.RootDigest, Shape: m.Shape}, err
}

// key names the snapshot's folder.
func (id identity) key() string { return keyPrefix + snapshots.Key(id) }

// keyPrefix distinguishes gVisor's folders from those of other substrates.
const keyPrefix = "gvisor-"

// named is the Kind of gVisor's snapshots. Other substrates sweep names that begin with ".new-".
var named = snapshots.Kind{Manifest: manifestFile, Keys: keyPrefix, New: ".taking-", End: "."}

// differs names the first property in which id and other differ; "" if there is none.
func (id identity) differs(other identity) string {
	return snapshots.Differs(id == other,
		snapshots.Digests("runsc", id.Runsc, other.Runsc),
		snapshots.Part{What: "CPU", Was: string(id.HostCPU), Now: string(other.HostCPU),
			Bare: true},
		snapshots.Part{What: "host kernel", Was: id.Kernel, Now: other.Kernel},
		snapshots.Shapes(id.Shape, other.Shape),
		snapshots.Agents(id.Agent, other.Agent),
		snapshots.Roots(id.Root, other.Root))
}

// checkpointFiles are the files of a checkpoint, as `runsc checkpoint --compression=none` names
// them: the kernel's objects, the map of the memory, and the memory.
var checkpointFiles = []string{"checkpoint.img", "pages_meta.img", "pages.img"}

const manifestFile = "sandbox.json"

// A manifest describes a checkpoint on disk: its origin and its files, each with the stamp that
// shows whether the file was touched.
type manifest struct {
	Identity identity                   `json:"identity"`
	Taken    time.Time                  `json:"taken"`
	Files    map[string]filestamp.Stamp `json:"files"`
	// of a sandbox that was saved while running
	Layers []snapshots.Layer `json:"layers,omitempty"`
}

// openCheckpoint opens the checkpoint in dir if it is intact. A missing checkpoint is
// fs.ErrNotExist; an unusable checkpoint is an error of kind Integrity.
func openCheckpoint(ctx context.Context, dir string) (man manifest, files []*os.File, err error) {
	fail := func(what string, err error) (manifest, []*os.File, error) {
		(&images{checkpoint: files}).close()
		return man, nil, damaged(dir, what, err)
	}
	b, err := snapshots.ReadAtMost(filepath.Join(dir, manifestFile), snapshots.MaxManifest)
	if errors.Is(err, os.ErrNotExist) {
		return man, nil, err
	}
	if err == nil {
		err = json.Unmarshal(b, &man)
	}
	if err != nil {
		return fail("manifest", err)
	}
	for _, name := range checkpointFiles {
		path := filepath.Join(dir, name)
		if _, err := man.Files[name].Check(ctx, path); err != nil {
			return fail(name, err)
		}
		f, err := os.Open(path)
		if err != nil {
			return fail(name, err)
		}
		files = append(files, f)
	}
	return man, files, nil
}

// damaged returns the error for a damaged part of the sandbox that was saved in dir.
func damaged(dir, what string, err error) error {
	return turnstone.Errorf("gvisor.restore", turnstone.KindIntegrity, dir, "%s: %w", what, err).
		WithHint("start from the files of the saved sandbox instead")
}

// openSnapshot is openCheckpoint for a snapshot of the identity id.
func openSnapshot(ctx context.Context, dir string, id identity) ([]*os.File, error) {
	man, files, err := openCheckpoint(ctx, dir)
	if err == nil && man.Identity != id {
		(&images{checkpoint: files}).close()
		err = turnstone.Errorf("gvisor.snapshot", turnstone.KindIntegrity, dir,
			"manifest: was taken of another machine")
	}
	return files, err
}

// Boot implements substrate.Substrate.
func (s *Substrate) Boot(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	v, err := s.boot(ctx, m)
	if err != nil {
		return nil, s.wrap("gvisor.boot", err)
	}
	return v, nil
}

// bootLimit bounds a boot on a busy machine; a boot takes some hundred milliseconds.
const bootLimit = time.Minute

func (s *Substrate) boot(ctx context.Context, m substrate.Machine) (*sandbox, error) {
	m.Layers = nil
	in, err := s.openImages(ctx, m)
	if err != nil {
		return nil, err
	}
	v, err := s.start(ctx, in, m.Shape, "run")
	if err != nil {
		return nil, err
	}
	if v.from, err = s.identity(m); err == nil {
		err = v.wait(ctx, bootLimit)
	}
	if err != nil {
		_ = v.Close()
		return nil, err
	}
	return v, nil
}

// Restore implements substrate.Substrate. It returns before the agent is ready.
func (s *Substrate) Restore(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	id, err := s.identity(m)
	if err != nil {
		return nil, s.wrap("gvisor.restore", err)
	}
	in, err := s.openImages(ctx, m)
	if err != nil {
		return nil, s.wrap("gvisor.restore", err)
	}
	if in.checkpoint, err = s.ensureSnapshot(ctx, m, id); err != nil {
		in.close()
		return nil, s.wrap("gvisor.restore", err)
	}
	return s.restore(ctx, in, m, id)
}

func (s *Substrate) restore(ctx context.Context, in *images, m substrate.Machine,
	id identity) (substrate.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		in.close()
		return nil, s.wrap("gvisor.restore", err)
	}
	v, err := s.start(ctx, in, m.Shape, "restore", "--image-path="+checkpointDir)
	if err != nil {
		return nil, s.wrap("gvisor.restore", err)
	}
	v.from, v.layers = id, m.Layers
	return v, nil
}

// ensureSnapshot returns the files of m's snapshot, and takes it if no fitting, intact snapshot
// exists. Two processes that want the same snapshot take it once.
func (s *Substrate) ensureSnapshot(ctx context.Context, m substrate.Machine,
	id identity) ([]*os.File, error) {
	return snapshots.Ensure(ctx, named, snapshots.Want[[]*os.File]{
		Home: s.home, Key: id.key(), Progress: s.progress, How: s.Isolation(),
		Open:  func(dir string) ([]*os.File, error) { return openSnapshot(ctx, dir, id) },
		Fill:  func(tmp string) error { return s.fillSnapshot(ctx, m, id, tmp) },
		Taken: func(base string) { removeSuperseded(base, id) },
	})
}

// fillSnapshot boots m and checkpoints it when the agent is ready.
func (s *Substrate) fillSnapshot(ctx context.Context, m substrate.Machine, id identity,
	tmp string) error {
	v, err := s.boot(ctx, m)
	if err != nil {
		return err
	}
	defer v.Close()
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if err := v.checkpoint(ctx, tmp, false); err != nil {
		return err
	}
	man := manifest{Identity: id, Taken: time.Now().UTC()}
	return man.seal(ctx, tmp)
}

// checkpoint saves the sandbox to the folder dir. The sandbox ends unless leaveRunning.
func (v *sandbox) checkpoint(ctx context.Context, dir string, leaveRunning bool) error {
	args := []string{"checkpoint", "--image-path=" + dir, "--compression=none"}
	if leaveRunning {
		args = append(args, "--leave-running")
	}
	return v.control(ctx, append(args, string(v.ID()))...)
}

// seal makes the checkpoint's files in dir durable and adds the manifest.
func (man *manifest) seal(ctx context.Context, dir string) error {
	man.Files = map[string]filestamp.Stamp{}
	for _, name := range checkpointFiles {
		path := filepath.Join(dir, name)
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = errors.Join(f.Sync(), f.Close())
		if err == nil {
			man.Files[name], err = filestamp.Of(ctx, path)
		}
		if err != nil {
			return err
		}
	}
	return named.Describe(dir, man)
}

// removeSuperseded removes the snapshots that differ from id only in replaced parts (the agent,
// runsc, the host's kernel), and snapshots that were unused for a month.
func removeSuperseded(base string, id identity) {
	snapshots.RemoveSuperseded(named, base, func(man manifest) snapshots.Verdict {
		switch other := man.Identity; {
		case other == id:
			return snapshots.Keep
		case other.Root == id.Root && other.Shape == id.Shape:
			return snapshots.Replaced
		}
		return snapshots.MayAge
	})
}
