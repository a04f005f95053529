//go:build linux

package hostdir

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPath bounds a path in a system call, in bytes; the kernel's limit is 4095.
const maxPath = 3500

// openBelow opens a path below the folder dir. No component may be a symlink.
func openBelow(dir int, path string, flags int) (int, error) {
	at := dir
	closeAt := func() {
		if at != dir {
			_ = unix.Close(at)
		}
	}
	for len(path) > maxPath {
		cut := strings.LastIndexByte(path[:maxPath], '/')
		next, err := openStep(at, path[:cut], unix.O_PATH|unix.O_DIRECTORY)
		closeAt()
		if err != nil {
			return -1, err
		}
		at, path = next, path[cut+1:]
	}
	fd, err := openStep(at, path, flags)
	closeAt()
	return fd, err
}

func openStep(dir int, path string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // a concurrent rename
			continue
		case errors.Is(err, unix.ENOSYS): // Linux before 5.6, or a sandbox without the system call
			return openNames(dir, path, flags)
		}
		return fd, err
	}
}

// openNames is openStep, name by name.
func openNames(dir int, path string, flags int) (int, error) {
	at := dir
	for {
		name, rest, more := strings.Cut(path, "/")
		how := flags
		if more {
			how = unix.O_PATH | unix.O_DIRECTORY
		}
		fd, err := unix.Openat(at, name, how|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if at != dir {
			_ = unix.Close(at)
		}
		if err != nil || !more {
			return fd, err
		}
		at, path = fd, rest
	}
}

// A reader reads a file's content. At its end and on Close it returns an error if the file has
// changed. It does not read the holes of a sparse file.
type reader struct {
	n    *node
	f    *os.File
	off  int64
	data int64 // end of the data that contains off
	hole int64 // end of the hole that contains off; -1: unknown whether off is in a hole
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.n.sparse && r.off >= r.data && r.off >= r.hole {
		if err := r.seek(); err != nil {
			return 0, r.n.fail(err)
		}
	}
	if r.off < r.hole {
		n := int(min(int64(len(p)), r.hole-r.off))
		clear(p[:n])
		r.off += int64(n)
		return n, nil
	}
	n, err := r.f.ReadAt(p[:r.most(len(p))], r.off)
	r.off += int64(n)
	switch {
	case n > 0:
		return n, nil
	case errors.Is(err, io.EOF):
		if err := r.same(); err != nil {
			return 0, r.n.fail(err)
		}
		return 0, io.EOF
	}
	return 0, r.n.fail(err)
}

// most returns how many bytes of n may be read at once: not beyond the known data.
func (r *reader) most(n int) int64 {
	if r.n.sparse && r.off < r.data {
		return min(int64(n), r.data-r.off)
	}
	return int64(n)
}

// seek determines whether off is in data or in a hole, and its end.
func (r *reader) seek() error {
	fd := int(r.f.Fd())
	size := r.n.stamp.size
	if r.off >= size {
		return nil
	}
	data, err := unix.Seek(fd, r.off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		r.hole = size // a hole up to the end
		return nil
	case errors.Is(err, unix.EINVAL): // the file system does not support it
		r.data = size
		return nil
	case err != nil:
		return err
	case data > r.off:
		r.hole = min(data, size)
		return nil
	}
	hole, err := unix.Seek(fd, r.off, unix.SEEK_HOLE)
	if err != nil {
		return err
	}
	r.data = hole
	return nil
}

// same returns an error if the file has changed since its directory was read.
func (r *reader) same() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.f.Fd()), &st); err != nil {
		return err
	}
	now := stampOf(&st)
	if now.size != r.n.stamp.size || now.mtime != r.n.stamp.mtime || now.ctime != r.n.stamp.ctime {
		return errChanged
	}
	return nil
}

// Close implements io.Closer.
func (r *reader) Close() error {
	err := r.same()
	if cerr := r.f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return r.n.fail(err)
	}
	return nil
}
