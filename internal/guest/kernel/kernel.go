// Package kernel keeps the guest kernel: the image that a microVM boots, the
// modules that its agent loads, and the initramfs that carries both of them in.
// The kernel is Debian's, taken out of its package and not installed.
package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Kernel is one guest kernel, kept on disk. It is not changed after Ensure.
type Kernel struct {
	Vmlinux string           // path of an ELF kernel with a PVH entry, or of a bzImage where that cannot be had
	Digest  turnstone.Digest // of the file at Vmlinux
	Version string           // the release, as "6.1.0-50-cloud-amd64"; "" when neither a foreign image nor its modules' folder tell
	Release string           // the release that the running kernel has to tell (uname); "" when the image does not
	Modules []Module         // what the guest loads, in this order
	Own     bool             // it is the user's, not Debian's
	Test    bool             // it is made for tests: inside the guest nothing separates programs from the kernel
}

// A Choice is a kernel of the user's. The zero value chooses Debian's.
type Choice struct {
	Image   string // path of a vmlinux or a bzImage
	Modules string // path of its folder lib/modules/<release>; empty: the drivers are built in
}

// OrEnv returns what TURN_KERNEL and TURN_KERNEL_MODULES say, or c where they say nothing.
// The modules of c do not go with an image of the environment's.
func (c Choice) OrEnv() Choice {
	if image := os.Getenv("TURN_KERNEL"); image != "" {
		c = Choice{Image: image}
	}
	if modules := os.Getenv("TURN_KERNEL_MODULES"); modules != "" {
		c.Modules = modules
	}
	return c
}

// A Module is one driver of the guest kernel.
type Module struct {
	Name   string           // as the kernel knows it
	Path   string           // of the unpacked .ko file
	Digest turnstone.Digest // of that file
}

// manifestVersion changes when kernels that are kept have to be taken out anew.
const manifestVersion = 1

// A manifest is the file that says what a kept kernel consists of. It is written last.
type manifest struct {
	Format  int          `json:"format"`
	Version string       `json:"version"`
	Release string       `json:"release,omitempty"` // of an override: what its image names
	Image   keptFile     `json:"image"`
	Modules []keptModule `json:"modules"`
	Sources []keptFile   `json:"sources,omitempty"` // what an override was made from
}

// A keptFile is a file and what it must be. Path is relative to the manifest's
// folder, or absolute.
type keptFile struct {
	Path  string          `json:"path"`
	Stamp filestamp.Stamp `json:"stamp"`
}

type keptModule struct {
	Name string `json:"name"`
	keptFile
}

// Ensure returns the guest kernel, kept under dir, which it makes. The first call
// downloads it from Debian (about 70 MB, some ten seconds); later ones read a
// manifest and look at the files. What is damaged is taken out again. Processes
// that call it at once do the work once, under a lock. progress, which may be nil,
// is told of anything that takes long.
//
// choice names another kernel, and the environment overrides it: see Choice.OrEnv.
//
// Errors are *turnstone.Error: Invalid for an override that cannot be used, else
// what getting the package met.
func Ensure(ctx context.Context, dir string, choice Choice, progress func(string)) (*Kernel, error) {
	if progress == nil {
		progress = func(string) {}
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, turnstone.NewError("kernel.ensure", turnstone.KindUnavailable, dir, err).
			WithHint("set TURN_HOME to a folder that you may write")
	}
	src, err := choice.OrEnv().source()
	if err != nil {
		return nil, err
	}
	return ensure(ctx, dir, src, progress)
}

// A source is where a kernel is taken from.
type source interface {
	// key names what is kept of it: a folder's name.
	key() string
	// describe says for people what take will do.
	describe() string
	// take puts the image and the modules into the empty folder dir and says in m what they are.
	take(ctx context.Context, dir string, progress func(string)) (m *manifest, err error)
}

func ensure(ctx context.Context, dir string, src source, progress func(string)) (*Kernel, error) {
	kept := filepath.Join(dir, src.key())
	if k, err := load(ctx, kept); err == nil {
		return k, nil
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(dir, src.key()+".lock"), func() {
		progress("waiting for another process that prepares the guest kernel")
	})
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	k, err := load(ctx, kept) // another process may have been faster
	switch {
	case err == nil:
		return k, nil
	case ctx.Err() != nil:
		return nil, turnstone.NewError("kernel.ensure", turnstone.KindCanceled, "", ctx.Err())
	case errors.Is(err, errChanged):
		progress(fmt.Sprintf("%v: preparing it again", err))
	case !errors.Is(err, os.ErrNotExist):
		progress(fmt.Sprintf("the kept guest kernel is not whole (%v): preparing it again", err))
	}
	progress(src.describe())
	if err := build(ctx, kept, src, progress); err != nil {
		return nil, err
	}
	return load(ctx, kept)
}

// build takes src out into a folder beside kept, which then takes its place. The
// caller holds kept's lock.
func build(ctx context.Context, kept string, src source, progress func(string)) error {
	failed := func(err error) error {
		var typed *turnstone.Error
		if errors.As(err, &typed) {
			return err
		}
		return turnstone.NewError("kernel.ensure", turnstone.KindUnavailable, "guest kernel", err)
	}
	tmp := kept + ".tmp" // one name, as the lock allows one writer: what a crash left is there to be removed
	if err := os.RemoveAll(tmp); err != nil {
		return failed(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return failed(err)
	}
	m, err := src.take(ctx, tmp, progress)
	if err != nil {
		return failed(err)
	}
	m.Format = manifestVersion
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return failed(err)
	}
	if err := filestamp.WriteFile(filepath.Join(tmp, "manifest.json"), append(b, '\n'), 0o444); err != nil {
		return failed(err)
	}
	if err := os.RemoveAll(kept); err != nil {
		return failed(err)
	}
	if err := os.Rename(tmp, kept); err != nil {
		return failed(err)
	}
	return filestamp.SyncDir(filepath.Dir(kept))
}

// errChanged is wrapped by what load returns where a file of the user's is another now.
var errChanged = errors.New("has changed since it was prepared")

// load reads a kept kernel and checks that its files are what the manifest says.
func load(ctx context.Context, dir string) (*Kernel, error) {
	path := filepath.Join(dir, "manifest.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if m.Format != manifestVersion {
		return nil, fmt.Errorf("%s: format %d instead of %d", path, m.Format, manifestVersion)
	}
	changed := false
	check := func(f *keptFile) (string, error) {
		path := f.Path
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		now, err := f.Stamp.Check(ctx, path)
		if err != nil {
			return "", err
		}
		changed = changed || now != f.Stamp
		f.Stamp = now
		return path, nil
	}
	k := &Kernel{Version: m.Version, Release: m.Release, Digest: m.Image.Stamp.Digest, Own: len(m.Sources) > 0, Test: IsTest(m.Version)}
	if !k.Own {
		k.Release = k.Version // its package names it
	}
	for i := range m.Sources {
		if _, err := check(&m.Sources[i]); err != nil {
			if _, gone := os.Stat(m.Sources[i].Path); gone == nil && ctx.Err() == nil {
				err = fmt.Errorf("%s %w", m.Sources[i].Path, errChanged)
			}
			return nil, err
		}
	}
	if k.Vmlinux, err = check(&m.Image); err != nil {
		return nil, err
	}
	for i := range m.Modules {
		path, err := check(&m.Modules[i].keptFile)
		if err != nil {
			return nil, err
		}
		k.Modules = append(k.Modules, Module{Name: m.Modules[i].Name, Path: path, Digest: m.Modules[i].Stamp.Digest})
	}
	if changed {
		// The files were copied or touched, and are the same: spare the next call the
		// reading. That it cannot be written down is no fault.
		if b, err := json.MarshalIndent(m, "", "  "); err == nil {
			_ = filestamp.WriteFile(path, append(b, '\n'), 0o444)
		}
	}
	return k, nil
}
