package files

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// maxLinks bounds the symbolic links that follow one another (path_resolution(7)).
const maxLinks = 40

// A Place is a name in an open directory: the last name of a path, whose earlier links have been
// followed inside the sandbox's root.
type Place struct {
	Dir  int // descriptor
	name string
}

func (p Place) Close() { _ = unix.Close(p.Dir) }

// Open opens a path of the sandbox. Links in it never lead out of its root, nor through the magic
// links of /proc, which would open the agent's open files.
func (f *Files) Open(path string, flags int, mode uint32) (int, error) {
	root, err := f.RootFD()
	if err != nil {
		return -1, err
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_LARGEFILE),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 64 {
		fd, err := unix.Openat2(root, path, &how)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN: // EAGAIN: a concurrent rename
			continue
		case err == unix.ENOSYS && f.chroot == "":
			// The agent's own root is the sandbox's: no path leads out of it.
			return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_LARGEFILE, mode)
		}
		return fd, err
	}
	return -1, unix.EAGAIN
}

// Root looks up names for processes.
type Root struct{ f *Files }

// NewRoot returns the Root of f.
func NewRoot(f *Files) Root { return Root{f} }

func (r Root) Open(path string, flags int) (int, error) { return r.f.Open(path, flags, 0) }

func (r Root) MkdirAll(path string) error {
	fd, err := r.f.Open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return unix.Close(fd)
	}
	return r.f.mkdirAll(path, 0o755)
}

// split cuts the last name off a path. It does not clean the rest, because ".." after a link has
// the kernel's meaning.
func split(path string) (dir, name string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}

// at opens the directory that contains the last name of a path.
func (f *Files) at(path string) (Place, error) {
	dir, name := split(path)
	if name == "" || name == "." || name == ".." {
		return Place{}, errNoName
	}
	fd, err := f.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return Place{fd, name}, err
}

// errNoName reports a path whose last element cannot be created, moved or removed.
var errNoName = errors.New("the path does not end in a name")

// target is at, except that it also follows symbolic links in the last name, so that it finds the
// file to replace and not its link.
func (f *Files) target(path string) (Place, error) {
	for range maxLinks {
		p, err := f.at(path)
		if err != nil {
			return p, err
		}
		link, err := readlinkat(p.Dir, p.name)
		if err == unix.EINVAL || err == unix.ENOENT {
			return p, nil
		}
		p.Close()
		if err != nil {
			return Place{}, err
		}
		if !strings.HasPrefix(link, "/") {
			dir, _ := split(path)
			link = dir + link
		}
		if strings.HasSuffix(link, "/") {
			return Place{}, unix.EISDIR
		}
		path = link
	}
	return Place{}, unix.ELOOP
}

func readlinkat(dir int, name string) (string, error) {
	buf := make([]byte, MaxPath+1)
	n, err := unix.Readlinkat(dir, name, buf)
	return string(buf[:max(0, n)]), err
}

// checkPath rejects a path that is not absolute.
func checkPath(op turnstone.Op, path string) error {
	switch {
	case !filepath.IsAbs(path):
		return invalid(op, path, "the path is not absolute")
	case len(path) > MaxPath || strings.IndexByte(path, 0) >= 0:
		return invalid(op, path, "the path is too long, or contains a NUL byte")
	}
	return nil
}

// fsError returns the error that a client gets for a failed file operation.
func fsError(op turnstone.Op, path string, err error) error {
	var te *turnstone.Error
	if err == nil || errors.As(err, &te) {
		return err
	}
	e := turnstone.NewError(op, turnstone.KindUnavailable, path, RootCause(err))
	for _, k := range fsKinds {
		if errors.Is(err, k.errno) {
			e.Kind, e.Hint = k.kind, k.hint
			break
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		e.Err = unix.ENOENT
	}
	return e
}

var fsKinds = []struct {
	errno error
	kind  turnstone.Kind
	hint  string
}{
	{unix.ENOENT, turnstone.KindNotFound, "check the path, and that a step has created it"},
	{unix.ENOTDIR, turnstone.KindNotFound, "a part of the path is a file, not a directory"},
	{unix.EEXIST, turnstone.KindInvalid,
		"request the replacement of the existing file, or choose another name"},
	{unix.ENOTEMPTY, turnstone.KindInvalid,
		"request the removal of the directory with its contents: it is not empty"},
	{unix.EISDIR, turnstone.KindInvalid, "it is a directory"},
	{unix.ELOOP, turnstone.KindInvalid,
		"too many symbolic links, or one into the agent's own /proc"},
	{unix.EXDEV, turnstone.KindInvalid,
		"copy and remove: the two paths are on different file systems"},
	{unix.EINVAL, turnstone.KindInvalid, ""},
	{unix.ENAMETOOLONG, turnstone.KindInvalid, "choose a shorter name"},
	{unix.EROFS, turnstone.KindInvalid, "this file system cannot be written"},
	{unix.EBUSY, turnstone.KindInvalid, "something is mounted there"},
	{unix.EACCES, turnstone.KindInvalid, "the kernel does not allow it, even to root"},
	{unix.EPERM, turnstone.KindInvalid, "the kernel does not allow it, even to root"},
	{errNoName, turnstone.KindInvalid, "name a file or directory"},
	{unix.ENOSPC, turnstone.KindExhausted,
		"the sandbox's disk is full; remove something, or ask for more disk"},
	{unix.EDQUOT, turnstone.KindExhausted,
		"the sandbox's disk is full; remove something, or ask for more disk"},
	{syscall.EMFILE, turnstone.KindExhausted, "too many files are open in the agent; try again"},
}

// RootCause removes the agent's own path from a file error.
func RootCause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func invalid(op turnstone.Op, subject, msg string) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, brief.Subject(subject), "%s", msg)
}

// procFD returns the kernel's name for an open file.
func (f *Files) procFD(fd int) string { return f.fds + strconv.Itoa(fd) }

// MaxPath bounds a path, in bytes: PATH_MAX without its NUL.
const MaxPath = 4095
