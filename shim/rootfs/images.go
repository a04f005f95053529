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
	// Layers returns the folders that it consists of, the highest first, if it is only that: nobody writes to them, and
	// it has no files of its own. It returns nothing if it may have, and is nil if that is known.
	Layers func() []string
	// With calls f while the file system is mounted at a folder.
	With func(f func(dir string) error) error
}

// Images are read-only images (EROFS) of root file systems: one for each stack of layers, made once on a host for all
// containers. An image goes when the host has one of its layers no more. The methods are safe for concurrent use, also
// of several processes.
type Images struct {
	Dir string // exists
	// Make has an image made, by Make of this package in a process of its own: an image is no work of one pod, whose
	// bounds or end must not stop it, and whose memory it must not take.
	Make func(ctx context.Context, o Order) error
}

// An Order describes an image to make.
type Order struct {
	Dir    string   // of Images
	Layers []string // the highest first
}

// Bounds of an image. Its maker has all names and attributes in memory: what is larger is copied.
const (
	maxEntries = 500_000
	maxText    = 128 << 20 // bytes of names and attributes
	// fullDisk is the part of the disk that is in use at which no more images are made, in percent.
	fullDisk = 80
)

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

// stamps returns the stamps of an order's layers, as text, and the path of its image without the ending.
func (o Order) stamps() (text []byte, base string, err error) {
	var layers []stamp
	for _, path := range o.Layers {
		s, err := stampOf(path)
		if err != nil {
			return nil, "", err
		}
		layers = append(layers, s)
	}
	if text, err = json.Marshal(layers); err != nil {
		return nil, "", err
	}
	return text, filepath.Join(o.Dir, strings.TrimPrefix(string(turnstone.DigestBytes(text)), "sha256:")), nil
}

// Of returns the path of the image of a stack of layers. It is made if there is none.
func (x *Images) Of(ctx context.Context, layers []string) (string, error) {
	o := Order{Dir: x.Dir, Layers: layers}
	_, base, err := o.stamps()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(base + imageEnd); err == nil {
		return base + imageEnd, nil
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(x.Dir, &st); err != nil {
		return "", os.NewSyscallError("statfs", err)
	}
	if used := st.Blocks - st.Bfree; used*100 >= (used+st.Bavail)*fullDisk { // as df(1) has it
		return "", fmt.Errorf("no image is made on a disk of which %d percent are in use", fullDisk)
	}
	if err := x.Make(ctx, o); err != nil {
		return "", fmt.Errorf("the image of the root file system: %w", err)
	}
	if _, err := os.Stat(base + imageEnd); err != nil {
		return "", err
	}
	return base + imageEnd, nil
}

// Make makes the image of an order, if there is none. Others that make it wait. with calls a function while the layers
// are mounted at a folder, alone and read-only: what a container writes must not come into an image.
func Make(ctx context.Context, o Order, with func(layers []string, f func(dir string) error) error) error {
	text, base, err := o.stamps()
	if err != nil {
		return err
	}
	lock, err := statedir.Acquire(ctx, base+lockEnd, nil)
	if err != nil {
		return err
	}
	defer func() {
		_ = os.Remove(base + lockEnd) // who waits for it takes another one
		lock.Release()
	}()
	if _, err := os.Stat(base + imageEnd); err == nil {
		return nil
	}
	(&Images{Dir: o.Dir}).Sweep()
	if err := os.WriteFile(base+layersEnd, text, 0o600); err != nil {
		return err
	}
	if err := write(ctx, o, base, with); err != nil {
		_ = os.Remove(base + newEnd)
		_ = os.Remove(base + layersEnd)
		return err
	}
	return nil
}

func write(ctx context.Context, o Order, base string, with func([]string, func(string) error) error) (err error) {
	f, err := os.OpenFile(base+newEnd, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar2erofs.New(f, tar2erofs.Options{Built: time.Unix(0, 0), TempDir: o.Dir})
	err = with(o.Layers, func(dir string) error {
		pr, pw := io.Pipe()
		go func() { _ = pw.CloseWithError(Pack(ctx, pw, dir, "", Limits{Entries: maxEntries, Text: maxText})) }()
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
		if _, err := os.Stat(base + imageEnd); err == nil && current(text) { // it was finished meanwhile
			_ = os.Remove(base + lockEnd)
			lock.Release()
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
