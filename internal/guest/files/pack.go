package files

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// Pack implements FileSystem.pack.
func (f *Files) Pack(ctx context.Context, c *wire.Conn, p *wire.FileSystemPackParams) error {
	const op = wire.MethodFileSystemPack
	if err := checkPath(op, p.Path); err != nil {
		return err
	}
	_, base := split(p.Path)
	one := tarfiles.Packer{Holes: p.Holes, Owners: p.Owners}
	pack := func(w io.Writer) error { return one.Pack(ctx, w, p.Path, base) }
	if f.chroot != "" {
		root, name, err := f.openRoot(p.Path)
		if err != nil {
			return fsError(op, p.Path, err)
		}
		defer root.Close()
		if base == "" || base == "." || base == ".." {
			return invalid(op, p.Path, "it has no name of its own")
		}
		pack = func(w io.Writer) error { return one.PackRoot(ctx, w, root, name, base) }
	} else if err := f.exists(p.Path); err != nil {
		return fsError(op, p.Path, err)
	}
	s, err := c.Sender(p.Stream)
	if err != nil {
		return err
	}
	defer s.Until(ctx)()
	if err := pack(s); err != nil {
		s.Abort(RootCause(err))
		return fsError(op, p.Path, err)
	}
	return s.Close()
}

func (f *Files) exists(path string) error {
	fd, err := f.Open(path, unix.O_PATH, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// openRoot opens a directory of the sandbox, or the directory of a file, and then returns the
// file's name. The directory stays the same even if another file takes its name meanwhile.
func (f *Files) openRoot(path string) (root *os.Root, name string, err error) {
	fd, err := f.Open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	name = "."
	if err == unix.ENOTDIR {
		var at Place
		at, err = f.target(path)
		fd, name = at.Dir, at.name
	}
	if err != nil {
		return nil, "", err
	}
	defer unix.Close(fd)
	root, err = os.OpenRoot(f.procFD(fd))
	return root, name, err
}

// Unpack implements FileSystem.unpack.
func (f *Files) Unpack(ctx context.Context, c *wire.Conn, p *wire.FileSystemUnpackParams) error {
	const op = wire.MethodFileSystemUnpack
	if err := checkPath(op, p.Dest); err != nil {
		return err
	}
	r, err := c.Receiver(p.Stream)
	if err != nil {
		return err
	}
	defer r.Close()
	content := f.Writes.from(r)
	if f.chroot == "" {
		if dir, _ := split(p.Dest + "x"); f.owner() != nil {
			_ = f.mkdirAll(dir, 0o755) // otherwise unpack makes it, or says why it cannot
		}
		return fsError(op, p.Dest, f.unpack(ctx, content, p.Dest, p.Owners))
	}
	return fsError(op, p.Dest, f.unpackInRoot(ctx, content, p.Dest, p.Owners))
}

// unpack unpacks the client's own files: links and modes are kept, and the disk is the limit.
func (f *Files) unpack(ctx context.Context, r io.Reader, dest string, owners bool) error {
	return tarfiles.Unpack(ctx, r, dest, tarfiles.Any(), tarfiles.Limits{Trusted: true, Owners: owners,
		Entries: 1 << 40, Bytes: 1 << 60, Owner: f.owner()})
}

// unpackInRoot is unpack for a root other than the agent's, in which names could lead out of the
// sandbox's root.
func (f *Files) unpackInRoot(ctx context.Context, r io.Reader, dest string, owners bool) error {
	slash := dest[len(dest)-1] == '/'
	if slash {
		if err := f.mkdirAll(dest, 0o755); err != nil {
			return err
		}
	}
	fd, err := f.Open(dest, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		defer unix.Close(fd)
		return f.unpack(ctx, r, f.procFD(fd)+"/", owners)
	}
	if slash || err != unix.ENOENT && err != unix.ENOTDIR {
		return err
	}
	if dir, _ := split(dest); dir != "" {
		if err := f.mkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	at, err := f.target(dest)
	if err != nil {
		return err
	}
	defer at.Close()
	return f.unpackAs(ctx, r, at, owners)
}

// unpackAs unpacks a stream with a single top-level name, which becomes at's name. It unpacks into
// a directory of its own first, which no link can replace.
func (f *Files) unpackAs(ctx context.Context, r io.Reader, at Place, owners bool) error {
	temp := TempPrefix + rand.Text()
	if err := unix.Mkdirat(at.Dir, temp, 0o700); err != nil {
		return err
	}
	defer func() { _ = removeAll(context.WithoutCancel(ctx), at.Dir, temp) }()
	fd, err := unix.Openat(at.Dir, temp,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), temp)
	defer d.Close()
	if err := f.unpack(ctx, r, f.procFD(fd)+"/", owners); err != nil {
		return err
	}
	names, err := d.Readdirnames(2)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	case len(names) > 1:
		return invalid(wire.MethodFileSystemUnpack, at.name,
			"several names at the top, for one destination")
	}
	err = unix.Renameat(fd, names[0], at.Dir, at.name)
	if err == unix.ENOTDIR {
		return turnstone.Errorf(wire.MethodFileSystemUnpack, turnstone.KindInvalid, at.name,
			"a folder is not copied in the place of a file").WithHint("remove the file, or choose another name")
	}
	return err
}
