package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/substrate"
)

// emptySlot returns the path of the file for a slot without a layer: a single hole.
func (s *Substrate) emptySlot() (string, error) {
	dir, err := s.home.MkdirAll("cache")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "slot-empty")
	if st, err := os.Stat(path); err == nil && st.Size() == substrate.SlotSize {
		return path, nil
	}
	tmp, err := os.CreateTemp(dir, ".slot-*")
	if err != nil {
		return "", err
	}
	defer func() { _, _ = tmp.Close(), os.Remove(tmp.Name()) }()
	if err := errors.Join(tmp.Truncate(substrate.SlotSize), tmp.Chmod(0o444)); err != nil {
		return "", err
	}
	return path, os.Rename(tmp.Name(), path)
}

// emptyHome returns the file in place of a missing home disk: a file in memory that reads as zeros,
// and that no process can write (fcntl(2), F_SEAL_WRITE). The drive is writable, so Firecracker
// opens its file for writing.
func emptyHome() (*os.File, error) {
	fd, err := unix.MemfdCreate("turnstone-home", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "home")
	err = f.Truncate(substrate.SlotSize)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// checkSlot checks that the file at path is an image for a slot.
func checkSlot(path string) error {
	f, err := disk.OpenSlot("firecracker.restore", path, os.O_RDONLY)
	if err != nil {
		return err
	}
	return f.Close()
}

// copyFile creates dst as a copy of the file at src: it shares blocks if the file system can
// (ioctl_ficlone(2)), and otherwise omits the holes. It returns the open file.
func copyFile(ctx context.Context, dst, src string, mode os.FileMode) (f *os.File, err error) {
	in, err := os.Open(src)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if f, err = os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode); err != nil {
		return nil, err
	}
	if err = disk.Clone(ctx, f, in); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
