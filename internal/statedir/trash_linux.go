//go:build !turnstone_client

package statedir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errBudget is the error of remove when it stops early.
var errBudget = errors.New("the folder has too many files")

// remove removes the file or folder at path. For any nesting it has at most three folders open: it
// moves a folder's subfolders to the top before removing the folder, so that each folder moves
// once. It follows no symbolic links and restores missing permissions of a folder's owner.
func remove(ctx context.Context, path string, budget *int) error {
	err := unix.Unlink(path)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	top, err := openFolder(unix.AT_FDCWD, path)
	if err != nil {
		return gone(err)
	}
	defer func() { _ = top.Close() }()
	for {
		names, err := top.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			return gone(os.Remove(path))
		}
		for _, name := range names {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = flatten(ctx, top, name, budget)
			}
		}
		if err != nil {
			return err
		}
		// A moved folder may precede the last read position.
		if _, err := top.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// flatten removes the entry name of top and moves its subfolders to top.
func flatten(ctx context.Context, top *os.File, name string, budget *int) error {
	removed, err := unlink(top, name, budget)
	if removed || err != nil {
		return err
	}
	dir, err := openFolder(int(top.Fd()), name)
	if err != nil {
		return gone(err)
	}
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			return gone(unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR))
		}
		for _, n := range names {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = raise(top, dir, n, budget)
			}
		}
		if err != nil {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// raise removes the entry name of dir, or moves it to top if it is a folder that is not empty.
func raise(top, dir *os.File, name string, budget *int) error {
	removed, err := unlink(dir, name, budget)
	if removed || err != nil {
		return err
	}
	f, err := openFolder(int(dir.Fd()), name) // moving a folder requires write permission for it
	if err != nil {
		return gone(err)
	}
	_ = f.Close()
	return gone(unix.Renameat(int(dir.Fd()), name, int(top.Fd()), rand.Text()))
}

// unlink removes an entry other than a folder that is not empty.
func unlink(dir *os.File, name string, budget *int) (removed bool, err error) {
	if *budget <= 0 {
		return false, errBudget
	}
	*budget--
	err = unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	switch {
	case gone(err) == nil:
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY):
		return false, nil
	default:
		return false, &os.PathError{Op: "remove", Path: name, Err: err}
	}
}

// openFolder opens a folder of any mode and makes it private to its owner.
func openFolder(at int, name string) (*os.File, error) {
	fd, err := openat(at, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	// fchmod(2) rejects such a descriptor, and the name could refer to another file by now.
	if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o700); err != nil {
		return nil, &os.PathError{Op: "chmod", Path: name, Err: err}
	}
	open, err := openat(fd, ".", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(open), name), nil
}

func openat(at int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// gone treats a missing file as removed: other processes may remove it too.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
