package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// xattrKey begins the records of a tar stream that carry extended attributes, as GNU tar and
// libarchive write them.
const xattrKey = "SCHILY.xattr."

// unpack writes a tar stream below dir, which becomes the process's root: no name and no link of
// the stream leads out of it. Owners, modes, times, hard links and extended attributes are kept.
func unpack(r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Chroot(dir); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	unix.Umask(0)
	var dirs []*tar.Header // whose times the entries below them change
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		h.Name = path.Clean("/" + h.Name)
		if err := unpackOne(tr, h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, h)
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = os.Chtimes(dirs[i].Name, dirs[i].ModTime, dirs[i].ModTime)
	}
	_, err := io.Copy(io.Discard, r) // the end of the archive
	return err
}

func unpackOne(r io.Reader, h *tar.Header) error {
	if parent := path.Dir(h.Name); parent != "/" {
		if _, err := os.Lstat(parent); err != nil {
			if err := os.MkdirAll(parent, 0o755); err != nil {
				return err
			}
		}
	}
	mode := uint32(h.Mode & 0o7777)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.Mkdir(h.Name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	case tar.TypeReg:
		if err := writeFile(r, h.Name); err != nil {
			return err
		}
	case tar.TypeSymlink:
		_ = os.Remove(h.Name)
		if err := os.Symlink(h.Linkname, h.Name); err != nil {
			return err
		}
	case tar.TypeLink:
		_ = os.Remove(h.Name)
		return os.Link(path.Clean("/"+h.Linkname), h.Name)
	case tar.TypeFifo:
		if err := unix.Mkfifo(h.Name, mode); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	default:
		return nil
	}
	if err := os.Lchown(h.Name, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return nil
	}
	if err := unix.Chmod(h.Name, mode); err != nil { // after the owner, which clears bits
		return err
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrKey); ok {
			_ = unix.Lsetxattr(h.Name, name, []byte(value), 0) // not all kernels have all
		}
	}
	return os.Chtimes(h.Name, h.ModTime, h.ModTime)
}

func writeFile(r io.Reader, name string) error {
	_ = os.Remove(name)
	f, err := os.OpenFile(filepath.Clean(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
