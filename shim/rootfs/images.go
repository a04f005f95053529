package rootfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/statedir"
)

// A Root is a container's root file system on the host.
type Root struct {
	// Layers are the folders that it consists of, the highest first, if it is only that: nobody writes to them, and it
	// has no files of its own. Empty: it may have.
	Layers []string
	// With calls f while the file system is mounted at a folder.
	With func(f func(dir string) error) error
}

// Images are read-only images (EROFS) of root file systems: one for each stack of layers, made once on a host for all
// containers. An image goes when the host has one of its layers no more. The methods are safe for concurrent use, also
// of several processes.
type Images struct {
	Dir     string // exists
	Entries int    // of an image, at most
}

const (
	imageEnd  = ".erofs"
	layersEnd = ".json"
	lockEnd   = ".lock"
	newEnd    = ".new"
)

// A stamp identifies a folder: another one at its path, later, has another stamp.
type stamp struct {
	Path         string
	Device       uint64
	Inode        uint64
	Sec, Nanosec int64 // of the last change of its inode
}

func stampOf(path string) (stamp, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return stamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return stamp{path, uint64(st.Dev), st.Ino, st.Ctim.Sec, st.Ctim.Nsec}, nil
}

// Of returns the path of the image of r, which has layers. It is made if there is none; others that want it wait.
func (x *Images) Of(ctx context.Context, r Root) (string, error) {
	var layers []stamp
	for _, path := range r.Layers {
		s, err := stampOf(path)
		if err != nil {
			return "", err
		}
		layers = append(layers, s)
	}
	text, err := json.Marshal(layers)
	if err != nil {
		return "", err
	}
	base := filepath.Join(x.Dir, strings.TrimPrefix(string(turnstone.DigestBytes(text)), "sha256:"))
	if _, err := os.Stat(base + imageEnd); err == nil {
		return base + imageEnd, nil
	}
	lock, err := statedir.Acquire(ctx, base+lockEnd, nil)
	if err != nil {
		return "", err
	}
	defer func() {
		_ = os.Remove(base + lockEnd) // who waits for it takes another one
		lock.Release()
	}()
	if _, err := os.Stat(base + imageEnd); err == nil {
		return base + imageEnd, nil
	}
	x.Sweep()
	if err := os.WriteFile(base+layersEnd, text, 0o600); err != nil {
		return "", err
	}
	if err := x.write(ctx, r, base); err != nil {
		_ = os.Remove(base + newEnd)
		_ = os.Remove(base + layersEnd)
		return "", fmt.Errorf("the image of the root file system: %w", err)
	}
	return base + imageEnd, nil
}

// write makes the image of r. Its layers stay the same meanwhile, since their image is in use.
func (x *Images) write(ctx context.Context, r Root, base string) (err error) {
	f, err := os.OpenFile(base+newEnd, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar2erofs.New(f, tar2erofs.Options{Built: time.Unix(0, 0), TempDir: x.Dir})
	err = r.With(func(dir string) error {
		pr, pw := io.Pipe()
		go func() { _ = pw.CloseWithError(Pack(ctx, pw, dir, "", Limits{Entries: x.Entries})) }()
		err := w.AddTar(pr, nil)
		_ = pr.CloseWithError(io.ErrClosedPipe)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = f.Sync() // a host that loses its power must not keep half of an image under its name
	}
	if err == nil {
		err = os.Rename(base+newEnd, base+imageEnd)
	}
	return err
}

// Sweep removes images whose layers the host has no more, and what was not finished. Sandboxes keep images that they use.
func (x *Images) Sweep() {
	all, _ := filepath.Glob(filepath.Join(x.Dir, "*"+layersEnd))
	for _, path := range all {
		base := strings.TrimSuffix(path, layersEnd)
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, err = os.Stat(base + imageEnd)
		if err == nil && current(text) {
			continue
		}
		lock, err := statedir.TryAcquire(base + lockEnd)
		if err != nil || lock == nil { // it is being made
			continue
		}
		for _, end := range []string{imageEnd, newEnd, layersEnd, lockEnd} {
			_ = os.Remove(base + end)
		}
		lock.Release()
	}
}

// current reports whether the layers are those of which an image was made.
func current(text []byte) bool {
	var layers []stamp
	if json.Unmarshal(text, &layers) != nil {
		return false
	}
	for _, was := range layers {
		if now, err := stampOf(was.Path); err != nil || now != was {
			return false
		}
	}
	return true
}
