package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/substrate"
)

// blankDisk returns the path of an empty ext4 file system of the given size, made once
// by mke2fs and kept. It is the same file that package qemu keeps, with the same
// reasons: no journal, since nothing of it survives the sandbox, and no reserved blocks.
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
	defer func() { _, _ = tmp.Close(), os.Remove(tmp.Name()) }()
	if err := tmp.Truncate(int64(size)); err != nil {
		return "", err
	}
	program, err := findSystem("mke2fs")
	if err != nil {
		return "", &turnstone.Error{Op: "firecracker.disk", Kind: turnstone.Unavailable, Subject: "mke2fs", Err: err, Hint: "sudo apt-get install e2fsprogs"}
	}
	out, err := exec.CommandContext(ctx, program, "-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0",
		"-b", "4096", "-i", "8192", "-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2", tmp.Name()).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mke2fs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return path, os.Rename(tmp.Name(), path)
}

// findSystem also looks where ordinary users' PATH does not.
func findSystem(name string) (string, error) {
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

// emptySlot returns the path of what a machine has in a slot for a layer that it has
// not got: a file that is one hole.
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

// emptyHome returns what a machine without a home disk has in its place: a file in
// memory that reads as zeros, and that nobody can write (fcntl(2), F_SEAL_WRITE). The
// drive is one that is written, so that Firecracker wants to open its file so.
func emptyHome() (*os.File, error) {
	fd, err := unix.MemfdCreate("turnstone-home", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "home")
	err = f.Truncate(substrate.SlotSize)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// checkSlot says whether the file at path is an image of exactly the size that the
// guest takes its disk for.
func checkSlot(path string) error {
	st, err := os.Stat(path)
	if err == nil && (!st.Mode().IsRegular() || st.Size() != substrate.SlotSize) {
		err = fmt.Errorf("it is not a file of %d bytes", substrate.SlotSize)
	}
	if err != nil {
		return &turnstone.Error{Op: "firecracker.restore", Kind: turnstone.Integrity, Subject: path, Err: err, Hint: "the image cannot be used; remove it"}
	}
	return nil
}

// copyFile makes the new file dst a copy of the file at src: sharing its blocks where
// the file system can (ioctl_ficlone(2)), else without its holes. It is open.
func copyFile(ctx context.Context, dst, src string, mode os.FileMode) (f *os.File, err error) {
	in, err := os.Open(src)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	if f, err = os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode); err != nil {
		return nil, err
	}
	if err = cloneFile(ctx, f, in); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func cloneFile(ctx context.Context, dst, src *os.File) error {
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return nil
	}
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	const part = 16 << 20
	for off := int64(0); ; {
		data, hole, err := nextData(src, off)
		if err != nil || data == hole {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		hole = min(hole, data+part)
		if _, err := io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, hole-data)); err != nil {
			return err
		}
		off = hole
	}
}

// nextData returns the first stretch of f behind off that is no hole; an empty one at
// its end.
func nextData(f *os.File, off int64) (data, hole int64, err error) {
	data, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, 0, nil
	}
	if err == nil {
		hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("seek: %w", err)
	}
	return data, hole, nil
}

// digHoles gives back the room of pages that are all zeros, of which a machine's memory
// has many: Firecracker writes all of them.
func digHoles(ctx context.Context, f *os.File) error {
	const page, part = 4096, 1 << 20
	buf, zeros := make([]byte, part), make([]byte, page)
	for off := int64(0); ; {
		data, hole, err := nextData(f, off)
		if err != nil || data == hole {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(part, hole-data)]
		if _, err := io.ReadFull(io.NewSectionReader(f, data, int64(len(b))), b); err != nil {
			return err
		}
		for at := 0; at < len(b); {
			begin := at
			for at+page <= len(b) && string(b[at:at+page]) == string(zeros) {
				at += page
			}
			if at > begin {
				err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, data+int64(begin), int64(at-begin))
				if errors.Is(err, unix.EOPNOTSUPP) {
					return nil // it is larger, and not wrong
				}
				if err != nil {
					return fmt.Errorf("fallocate: %w", err)
				}
			}
			at += page
		}
		off = data + int64(len(b))
	}
}
