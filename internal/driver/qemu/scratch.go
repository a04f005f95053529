package qemu

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver/disk"
)

// newScratch returns an unnamed copy of the file at path: the copy disappears with its last
// descriptor, however this process ends.
func newScratch(ctx context.Context, path, dir string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := nameless(dir)
	if err != nil {
		return nil, err
	}
	if err := disk.CopySparse(ctx, dst, src); err != nil {
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
