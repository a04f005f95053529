package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// images are the open files that a sandbox starts from: the files may be removed while it starts.
// runsc finds them by its own descriptors.
type images struct {
	root, lower, empty *os.File
	layers             []*os.File
	checkpoint         []*os.File // in the order of checkpointFiles; none for a boot
}

// imagePaths are the names by which runsc opens the images.
type imagePaths struct {
	root, lower, empty string
	layers             []string
}

// firstFD is the descriptor of the first of exec.Cmd's ExtraFiles.
const firstFD = 3

func fdPath(n int) string { return fmt.Sprintf("/proc/self/fd/%d", firstFD+n) }

// list returns the files in the order of their descriptors.
func (in *images) list() []*os.File {
	return append(append([]*os.File{in.root, in.lower, in.empty}, in.layers...), in.checkpoint...)
}

func (in *images) paths() imagePaths {
	p := imagePaths{root: fdPath(0), lower: fdPath(1), empty: fdPath(2)}
	for i := range in.layers {
		p.layers = append(p.layers, fdPath(3+i))
	}
	return p
}

func (in *images) close() {
	for _, f := range in.list() {
		if f != nil {
			_ = f.Close()
		}
	}
}

// checkpointDir is where runsc finds the checkpoint, in a sandbox's folder.
const checkpointDir = "checkpoint"

// linkCheckpoint creates the folder that runsc restores from.
func (in *images) linkCheckpoint(dir string) error {
	if in.checkpoint == nil {
		return nil
	}
	dir = filepath.Join(dir, checkpointDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for i, name := range checkpointFiles {
		if err := os.Symlink(fdPath(3+len(in.layers)+i), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// openImages opens the images of a sandbox of m.
func (s *Substrate) openImages(ctx context.Context, m substrate.Machine) (_ *images, err error) {
	own, err := s.ensureImages(ctx, m)
	if err != nil {
		return nil, err
	}
	in := &images{}
	defer func() {
		if err != nil {
			in.close()
		}
	}()
	if in.root, err = os.Open(own.root); err != nil {
		return nil, err
	}
	if in.empty, err = os.Open(own.empty); err != nil {
		return nil, err
	}
	if in.lower, err = os.Open(m.Root); err != nil {
		return nil, err
	}
	if m.Home != "" {
		return nil, turnstone.Errorf("gvisor.restore", turnstone.KindInvalid, "home",
			"gVisor mounts no writable disk").
			WithHint("use --substrate qemu for a persistent home")
	}
	if in.layers, err = disk.OpenLayers("gvisor.restore", m.Layers); err != nil {
		return nil, err
	}
	return in, nil
}

// ownImages are the paths of the images that this package creates.
type ownImages struct{ root, empty string }

// ensureImages creates the container's root with m's agent, and the image of an empty slot, if they
// are missing.
func (s *Substrate) ensureImages(ctx context.Context,
	m substrate.Machine) (own ownImages, err error) {
	dir, err := s.home.MkdirAll("gvisor")
	if err != nil {
		return own, err
	}
	layout := turnstone.DigestBytes([]byte(strings.Join(rootDirs(), "\x00") + "\x00" +
		string(m.AgentDigest)))
	if own.root, err = s.ensureImage(ctx, dir, "root-"+layout.Hex()[:32], func(f *os.File) error {
		agent, err := m.Agent()
		if err != nil {
			return err
		}
		if got := turnstone.DigestBytes(agent); got != m.AgentDigest {
			return turnstone.Errorf("gvisor.root", turnstone.KindIntegrity, "the agent",
				"is %s instead of %s", got, m.AgentDigest).WithHint("install turn again")
		}
		return writeRoot(f, agent)
	}); err != nil {
		return own, err
	}
	own.empty, err = s.ensureImage(ctx, dir, "empty",
		func(f *os.File) error { return writeEmpty(f) })
	return own, err
}

// ensureImage returns the path of the image called name in dir. It writes the image again if the
// file was changed.
func (s *Substrate) ensureImage(ctx context.Context, dir, name string, write func(*os.File) error) (
	string, error) {
	path, note := filepath.Join(dir, name+".erofs"), filepath.Join(dir, name+".json")
	fresh := func() bool {
		var st filestamp.Stamp
		b, err := os.ReadFile(note)
		return err == nil && json.Unmarshal(b, &st) == nil && st.Fresh(path)
	}
	if fresh() {
		return path, nil
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(dir, name+".lock"), nil)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if fresh() {
		return path, nil
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return "", err
	}
	st, err := filestamp.Of(ctx, path)
	if err != nil {
		return "", err
	}
	b, _ := json.Marshal(st) // plain data always encodes
	removeOld(dir, name)
	return path, filestamp.WriteFile(note, b, 0o600)
}

// removeOld removes the images that were created before name and more than a month ago, such as
// images of earlier agents, and incomplete files.
func removeOld(dir, name string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || time.Since(fi.ModTime()) < snapshots.Unused ||
			strings.HasPrefix(e.Name(), name+".") {
			continue
		}
		if strings.HasPrefix(e.Name(), "root-") || strings.HasPrefix(e.Name(), ".new-") {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
