// Package kernel manages the guest kernel: the image that a microVM boots, the modules that its
// agent loads, and the initramfs that contains agent and modules. The kernel is Debian's, extracted
// from its package without installation.
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
	"turnstone.dev/turnstone/internal/template/debian"
)

// A Kernel is a stored guest kernel. It does not change after Ensure.
type Kernel struct {
	// path of an ELF kernel with a PVH entry, or of a bzImage if there is none
	Vmlinux string
	Digest  turnstone.Digest // digest of the file at Vmlinux
	// the release, such as "6.1.0-50-cloud-amd64"; "" if neither the image nor the modules' folder
	// contains it
	Version string
	// the release that the running kernel must report (uname); "" if the image does not contain it
	Release string
	Modules []Module // modules that the guest loads, in this order
	Memory  []Module // modules for disks in memory, which deterministic machines load after Modules
	Own     bool     // the kernel is the user's, not Debian's
	Test    bool     // a test kernel: the guest does not separate programs from the kernel
}

// A Choice selects a user's kernel. The zero value selects Debian's.
type Choice struct {
	Image string // path of a vmlinux or a bzImage
	// path of its folder lib/modules/<release>; empty: all drivers are built in
	Modules string
	Mirrors debian.Mirrors // source of Debian's kernel
}

// Over returns c, with the values of base where c is empty. The modules of base are not combined
// with an image of c.
func (c Choice) Over(base Choice) Choice {
	if c.Image != "" {
		base.Image, base.Modules = c.Image, ""
	}
	if c.Modules != "" {
		base.Modules = c.Modules
	}
	if c.Mirrors != (debian.Mirrors{}) {
		base.Mirrors = c.Mirrors
	}
	return base
}

// Own reports whether c selects a user's kernel, or a part of it.
func (c Choice) Own() bool { return c.Image != "" || c.Modules != "" }

// A Module is a driver of the guest kernel.
type Module struct {
	Name   string           // the kernel's name of the module
	Path   string           // path of the unpacked .ko file
	Digest turnstone.Digest // of that file
}

// manifestVersion changes when stored kernels must be extracted again.
const manifestVersion = 1

// A manifest describes a stored kernel. It is written last.
type manifest struct {
	Format  int          `json:"format"`
	Version string       `json:"version"`
	Release string       `json:"release,omitempty"` // for an override: the release in its image
	Image   keptFile     `json:"image"`
	Modules []keptModule `json:"modules"`
	Memory  []keptModule `json:"memory,omitempty"`
	Sources []keptFile   `json:"sources,omitempty"` // the override's source files
}

// A keptFile is a file and its expected content. Path is absolute, or relative to the manifest's
// folder.
type keptFile struct {
	Path  string          `json:"path"`
	Stamp filestamp.Stamp `json:"stamp"`
}

type keptModule struct {
	Name string `json:"name"`
	keptFile
}

// Ensure returns the guest kernel, stored under dir, which Ensure creates. The first call downloads
// the kernel from Debian (about 70 MB, some ten seconds); later calls read a manifest and check the
// files. Damaged files are extracted again. A lock ensures that concurrent processes do the work
// once. progress, which may be nil, is called for long operations.
//
// choice selects another kernel.
//
// Errors are *turnstone.Error: of kind Invalid for an unusable override, otherwise those of
// fetching the package.
func Ensure(ctx context.Context, dir string, choice Choice,
	progress func(string)) (*Kernel, error) {
	if progress == nil {
		progress = func(string) {}
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, turnstone.NewError("kernel.ensure", turnstone.KindUnavailable, dir, err).
			WithHint("set TURN_HOME to a writable folder")
	}
	src, err := choice.source()
	if err != nil {
		return nil, err
	}
	return ensure(ctx, dir, src, progress)
}

// A source provides a kernel.
type source interface {
	// key returns the name of the stored kernel's folder.
	key() string
	// describe returns the description of take for progress.
	describe() string
	// take writes the image and the modules to the empty folder dir and describes them in m.
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
		progress(fmt.Sprintf("the stored guest kernel is damaged (%v): preparing it again", err))
	}
	progress(src.describe())
	if err := build(ctx, kept, src, progress); err != nil {
		return nil, err
	}
	return load(ctx, kept)
}

// build extracts src to a folder beside kept and then replaces kept. The caller holds kept's lock.
func build(ctx context.Context, kept string, src source, progress func(string)) error {
	failed := func(err error) error {
		var typed *turnstone.Error
		if errors.As(err, &typed) {
			return err
		}
		return turnstone.NewError("kernel.ensure", turnstone.KindUnavailable, "guest kernel", err)
	}
	// a fixed name, because the lock allows a single writer: the remains of a crash are removed
	tmp := kept + ".tmp"
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
	err = filestamp.WriteFile(filepath.Join(tmp, "manifest.json"), append(b, '\n'), 0o444)
	if err != nil {
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

// errChanged is in the chain of load's error if a file of the user has changed.
var errChanged = errors.New("has changed since it was prepared")

// load reads a stored kernel and verifies its files against the manifest.
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
	k := &Kernel{Version: m.Version, Release: m.Release, Digest: m.Image.Stamp.Digest,
		Own: len(m.Sources) > 0, Test: IsTest(m.Version)}
	if !k.Own {
		k.Release = k.Version // from the package's name
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
	for _, list := range []struct {
		kept []keptModule
		to   *[]Module
	}{{m.Modules, &k.Modules}, {m.Memory, &k.Memory}} {
		for i := range list.kept {
			of := &list.kept[i]
			path, err := check(&of.keptFile)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, Module{Name: of.Name, Path: path, Digest: of.Stamp.Digest})
		}
	}
	if changed {
		// The files were copied or touched and are equal: store the new stamps so that the next
		// call need not read the files. A failure is not an error.
		if b, err := json.MarshalIndent(m, "", "  "); err == nil {
			_ = filestamp.WriteFile(path, append(b, '\n'), 0o444)
		}
	}
	return k, nil
}
