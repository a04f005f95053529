package files

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/wire"
)

// Mkdir implements FileSystem.mkdir.
func (f *Files) Mkdir(_ context.Context, _ *wire.Conn, p *wire.FileSystemMkdirParams) error {
	const op = wire.MethodFileSystemMkdir
	if err := checkPath(op, p.Path); err != nil {
		return err
	}
	mode := uint32(0o755)
	if p.Mode != 0 {
		if mode = uint32(p.Mode); p.Mode < 0 || p.Mode > 0o7777 {
			return invalid(op, p.Path, "the mode is not valid for a directory")
		}
	}
	if p.Parents {
		return fsError(op, p.Path, f.mkdirAll(p.Path, mode))
	}
	return fsError(op, p.Path, f.mkdir(p.Path, mode))
}

func (f *Files) mkdir(path string, mode uint32) error {
	at, err := f.at(path)
	if err != nil {
		return err
	}
	defer at.Close()
	if err := unix.Mkdirat(at.Dir, at.name, mode); err != nil {
		return err
	}
	fd, err := unix.Openat(at.Dir, at.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil { // a process in the sandbox has replaced it
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() {
		return err
	}
	if o := f.owner(); owns(at.Dir, o) {
		if err := unix.Fchown(fd, o.UID, o.GID); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, mode) // the umask belongs to the agent
}

// mkdirAll creates a directory and its parents. mode is the last directory's mode.
func (f *Files) mkdirAll(path string, mode uint32) error {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return nil
	}
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' || path[i-1] == '/' {
			continue
		}
		m := uint32(0o755)
		if i == len(path) {
			m = mode
		}
		err := f.mkdir(path[:i], m)
		if err == unix.EEXIST || errors.Is(err, errNoName) {
			var fd int
			if fd, err = f.Open(path[:i], unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
				_ = unix.Close(fd)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Move implements FileSystem.move.
func (f *Files) Move(_ context.Context, _ *wire.Conn, p *wire.FileSystemMoveParams) error {
	const op = wire.MethodFileSystemMove
	if err := errors.Join(checkPath(op, p.From), checkPath(op, p.To)); err != nil {
		return err
	}
	from, err := f.at(p.From)
	if err != nil {
		return fsError(op, p.From, err)
	}
	defer from.Close()
	to, err := f.at(p.To)
	if err != nil {
		return fsError(op, p.To, err)
	}
	defer to.Close()
	if p.Overwrite {
		return fsError(op, p.From, unix.Renameat(from.Dir, from.name, to.Dir, to.name))
	}
	err = unix.Renameat2(from.Dir, from.name, to.Dir, to.name, unix.RENAME_NOREPLACE)
	// the file system has no atomic operation for this
	if err == unix.EINVAL || err == unix.ENOSYS {
		var st unix.Stat_t
		if err := unix.Fstatat(to.Dir, to.name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			return fsError(op, p.To, unix.EEXIST)
		}
		err = unix.Renameat(from.Dir, from.name, to.Dir, to.name)
	}
	if err == unix.EEXIST {
		return fsError(op, p.To, err)
	}
	return fsError(op, p.From, err)
}

// Remove implements FileSystem.remove.
func (f *Files) Remove(ctx context.Context, _ *wire.Conn, p *wire.FileSystemRemoveParams) error {
	const op = wire.MethodFileSystemRemove
	if err := checkPath(op, p.Path); err != nil {
		return err
	}
	at, err := f.at(p.Path)
	if err != nil {
		return fsError(op, p.Path, err)
	}
	defer at.Close()
	if !p.Recursive {
		err = unix.Unlinkat(at.Dir, at.name, 0)
		if err == unix.EISDIR || err == unix.EPERM {
			err = unix.Unlinkat(at.Dir, at.name, unix.AT_REMOVEDIR)
		}
		return fsError(op, p.Path, err)
	}
	return fsError(op, p.Path, removeAll(ctx, at.Dir, at.name))
}

// removeAll removes a name and everything below it. It follows no link.
func removeAll(ctx context.Context, dir int, name string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	fd, oerr := unix.Openat(dir, name,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if oerr != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, n := range names {
			if err := removeAll(ctx, fd, n); err != nil && err != unix.ENOENT {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		// Some file systems skip names when other names are removed meanwhile.
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}
