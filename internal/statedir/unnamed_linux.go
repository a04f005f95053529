package statedir

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unnamed returns an empty file on the file system of dir that no folder lists (O_TMPFILE of open(2)),
// so that nothing of it stays when its process is killed. On a file system without such files it has a
// name for a moment.
func Unnamed(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(dir, "a file without a name")), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f, err := os.CreateTemp(dir, ".unnamed-*")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
