package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
)

// blankDisk returns the path of an empty ext4 file system of the given size, made
// once by mke2fs and kept. It has no journal, because nothing of it survives the
// sandbox, and no reserved blocks, because the guest's processes are all root.
// Its inode tables are not written (uninit_bg): the file holds some 100 KiB,
// whatever its size.
func blankDisk(ctx context.Context, h *home.Home, size turnstone.Bytes) (string, error) {
	dir, err := h.MkdirAll("cache")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("scratch-v2-%d.ext4", int64(size)))
	if st, err := os.Stat(path); err == nil && st.Size() == int64(size) {
		return path, nil
	}
	tmp, err := os.CreateTemp(dir, ".scratch-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	defer func() { _ = tmp.Close() }()
	if err := tmp.Truncate(int64(size)); err != nil {
		return "", err
	}
	if err := mke2fs(ctx, tmp.Name(), "-b", "4096", "-i", "8192", "-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2"); err != nil {
		return "", err
	}
	return path, os.Rename(tmp.Name(), path)
}

// findProgram also looks where ordinary users' PATH does not.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// newScratch returns a copy of the file at path that has no name: whatever
// happens to us, it is gone when the last descriptor is.
func newScratch(path, dir string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = src.Close() }()
	dst, err := nameless(dir)
	if err != nil {
		return nil, err
	}
	if err := copySparse(dst, src); err != nil {
		_ = dst.Close()
		return nil, err
	}
	return dst, nil
}

func nameless(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(dir, "scratch")), nil
	}
	f, err := os.CreateTemp(dir, ".scratch-*") // file systems without O_TMPFILE
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// copySparse copies src to dst and leaves its holes holes.
func copySparse(dst, src *os.File) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	for off := int64(0); ; {
		data, err := unix.Seek(int(src.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no more data
		}
		if err != nil {
			return fmt.Errorf("seek: %w", err)
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("seek: %w", err)
		}
		if _, err := io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, hole-data)); err != nil {
			return err
		}
		off = hole
	}
}
