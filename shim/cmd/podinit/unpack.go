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

// current is the link in a volume of the kubelet's that leads to the files of today. The kubelet replaces it when
// they are complete.
const current = "/..data"

// aside is the name of an entry until it takes another's place: no key of a ConfigMap or Secret begins so, and a
// longer name than theirs would not fit.
const aside = "..podinit-new"

// errChanged is the error of a volume that the kubelet has replaced while it was packed.
var errChanged = errors.New("the volume has changed meanwhile")

// unpack writes a tar stream below dir, which becomes the process's root: no name and no link of
// the stream leads out of it. Owners, modes, times, hard links and extended attributes are kept.
// An entry that exists is replaced in one step, and the files of a volume that the kubelet updates all at once. With
// update, entries of dir that the stream lacks are removed at the end.
func unpack(r io.Reader, dir string, update bool) error {
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
	names, err := unpackAll(tar.NewReader(r))
	if err != nil {
		return err
	}
	if update {
		if err := removeOthers(names); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, r) // the end of the archive
	return err
}

// unpackAll returns the names of what the stream has in its root.
func unpackAll(tr *tar.Reader) (names map[string]bool, err error) {
	var dirs []*tar.Header // whose times the entries below them change
	var last *tar.Header
	names = make(map[string]bool)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		h.Name = path.Clean("/" + h.Name)
		first, _, _ := strings.Cut(h.Name[1:], "/")
		names[first] = true
		if h.Name == current && h.Typeflag == tar.TypeSymlink {
			last = h
			continue
		}
		if err := unpackOne(tr, h); err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, h)
		}
	}
	if last != nil {
		to, _, _ := strings.Cut(last.Linkname, "/")
		if len(to) > 2 && strings.HasPrefix(to, "..") && !names[to] {
			return nil, errChanged
		}
		if err := unpackOne(nil, last); err != nil {
			return nil, fmt.Errorf("%s: %w", last.Name, err)
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = os.Chtimes(dirs[i].Name, dirs[i].ModTime, dirs[i].ModTime)
	}
	return names, nil
}

// removeOthers removes the entries of the root that have none of these names, because no earlier version of a secret
// may stay.
func removeOthers(names map[string]bool) error {
	entries, err := os.ReadDir("/")
	for _, e := range entries {
		if !names[e.Name()] {
			err = errors.Join(err, os.RemoveAll("/"+e.Name()))
		}
	}
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
	at := h.Name
	if was, err := os.Lstat(h.Name); err == nil && (h.Typeflag != tar.TypeDir || !was.IsDir()) {
		at = path.Join(path.Dir(h.Name), aside)
		_ = os.RemoveAll(at)
		if was.IsDir() != (h.Typeflag == tar.TypeDir) { // the one cannot take the other's place
			_ = os.RemoveAll(h.Name)
		}
	}
	made, err := unpackAs(r, h, at)
	if err == nil && made && at != h.Name {
		err = os.Rename(at, h.Name)
	}
	if at != h.Name {
		_ = os.Remove(at) // a rename of two links of one file leaves both
	}
	return err
}

// unpackAs makes the entry h under the name at, and reports whether it is one of those that are made.
func unpackAs(r io.Reader, h *tar.Header, at string) (made bool, err error) {
	mode := uint32(h.Mode & 0o7777)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return false, err
		}
	case tar.TypeReg:
		if err := writeFile(r, at); err != nil {
			return false, err
		}
	case tar.TypeSymlink:
		if err := os.Symlink(h.Linkname, at); err != nil {
			return false, err
		}
	case tar.TypeLink:
		return true, os.Link(path.Clean("/"+h.Linkname), at)
	case tar.TypeFifo:
		if err := unix.Mkfifo(at, mode); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	if err := os.Lchown(at, h.Uid, h.Gid); err != nil || h.Typeflag == tar.TypeSymlink {
		return true, err
	}
	if err := unix.Chmod(at, mode); err != nil { // after the owner, which clears bits
		return false, err
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrKey); ok {
			_ = unix.Lsetxattr(at, name, []byte(value), 0) // not all kernels have all
		}
	}
	return true, os.Chtimes(at, h.ModTime, h.ModTime)
}

func writeFile(r io.Reader, name string) error {
	f, err := os.OpenFile(filepath.Clean(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
