// Package tarfiles copies files and folders between a host and a sandbox as tar streams. Pack writes
// a stream; Unpack reads a possibly hostile stream.
package tarfiles

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sparse"
)

// Pack writes the file or folder at hostPath to w as a tar stream (pax where needed). The entries
// are named name, and name/… below a folder; an empty name means hostPath's own name, and "." gives
// the entries of a folder no name above theirs. Pack follows a symbolic link at hostPath and keeps
// links below as links. It keeps modes, modification times and holes, but not owners, writes hard
// links as separate files, and skips sockets, pipes and devices. It stops soon after ctx ends.
func Pack(ctx context.Context, w io.Writer, hostPath, name string) error {
	return PackAll(ctx, w, []Item{{hostPath, name}})
}

// An Item is a file or folder to pack, and its name in the stream.
type Item struct{ HostPath, Name string }

// PackAll is Pack for several files and folders in one stream.
func PackAll(ctx context.Context, w io.Writer, items []Item) error {
	p := Packer{Holes: true}
	return p.stream(w, func() error {
		for _, i := range items {
			if err := p.path(ctx, i.HostPath, i.Name); err != nil {
				return err
			}
		}
		return nil
	})
}

// PackRoot is Pack for the file or folder start of root. It reads nothing outside of root, even if
// links change meanwhile. It follows a link at start if the link leads to a file.
func PackRoot(ctx context.Context, w io.Writer, root *os.Root, start, name string) error {
	return (&Packer{Holes: true}).PackRoot(ctx, w, root, start, name)
}

// A Packer packs with options. It is for one goroutine.
type Packer struct {
	// Holes means that files with holes are entries in GNU's sparse format, of which the holes are not
	// sent. Without it, they are zeros.
	Holes bool
	// Owners means that entries have the numbers of their users and groups.
	Owners bool

	w  io.Writer
	tw *tar.Writer
}

// Pack is the function Pack with options.
func (p *Packer) Pack(ctx context.Context, w io.Writer, hostPath, name string) error {
	return p.stream(w, func() error { return p.path(ctx, hostPath, name) })
}

// PackRoot is the function PackRoot with options.
func (p *Packer) PackRoot(ctx context.Context, w io.Writer, root *os.Root, start, name string) error {
	return p.stream(w, func() error { return p.root(ctx, root, start, name) })
}

// stream writes a whole stream, whose entries write writes.
func (p *Packer) stream(w io.Writer, write func() error) error {
	p.w, p.tw = w, tar.NewWriter(w)
	if err := write(); err != nil {
		return err
	}
	return p.tw.Close()
}

func (p *Packer) path(ctx context.Context, hostPath, name string) error {
	if abs, err := filepath.Abs(hostPath); name == "" && err == nil {
		name = filepath.Base(abs) // of "..", too
	}
	if name == string(filepath.Separator) || name == "" || name == ".." {
		return packError(hostPath, turnstone.KindInvalid,
			errors.New("the path has no name of its own"), "name the file or folder itself")
	}
	real, err := filepath.EvalSymlinks(hostPath)
	if err != nil {
		return packError(hostPath, kindOf(err), cause(err), "check the path")
	}
	dir, start := real, "."
	if st, err := os.Stat(real); err == nil && !st.IsDir() {
		if name == "." || os.IsPathSeparator(hostPath[len(hostPath)-1]) {
			return packError(hostPath, turnstone.KindInvalid, syscall.ENOTDIR,
				"name a file without a slash at its end")
		}
		dir, start = filepath.Split(real)
	}
	root, err := os.OpenRoot(cmp.Or(dir, "."))
	if err != nil {
		return packError(hostPath, kindOf(err), cause(err), "check its permissions")
	}
	defer func() { _ = root.Close() }()
	return p.root(ctx, root, start, name)
}

func (p *Packer) root(ctx context.Context, root *os.Root, start, name string) error {
	start = path.Clean(start)
	one := packer{Packer: p, ctx: ctx, root: root, start: start, buf: make([]byte, 256<<10)}
	return fs.WalkDir(root.FS(), start, func(file string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return packError(filepath.Join(root.Name(), file), kindOf(err),
				cause(err), "check its permissions")
		}
		rel, err := filepath.Rel(start, file)
		if err != nil {
			return err
		}
		return one.entry(file, path.Join(name, filepath.ToSlash(rel)), d)
	})
}

// A packer packs one file or folder.
type packer struct {
	*Packer
	ctx   context.Context
	root  *os.Root
	start string
	buf   []byte
}

func (p *packer) entry(file, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if file == p.start && err == nil && info.Mode()&fs.ModeSymlink != 0 {
		info, err = p.root.Stat(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed since the folder was read
	}
	if err != nil {
		return p.fail(file, kindOf(err), cause(err), "")
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()),
		ModTime: info.ModTime(), Format: tar.FormatPAX}
	if info.Mode()&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	if p.Owners {
		h.Uid, h.Gid = max(uidOf(info), 0), max(gidOf(info), 0)
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case info.Mode().IsRegular():
		return p.file(file, h)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(file); err != nil {
			return p.fail(file, kindOf(err), cause(err), "")
		}
	default:
		return nil
	}
	return p.tw.WriteHeader(h)
}

func (p *packer) file(file string, h *tar.Header) error {
	f, err := openRegular(p.root, file)
	if err != nil {
		return p.fail(file, kindOf(err), cause(err), "check its permissions")
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat() // of the open file, because the name may have changed
	if err != nil {
		return p.fail(file, turnstone.KindInternal, cause(err), "")
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if p.Holes {
		parts := sparse.Parts(f, h.Size, maxParts)
		if len(parts) != 1 || parts[0].Length != h.Size {
			return p.sparse(file, f, h, parts)
		}
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	return p.copy(p.tw, file, f, sparse.Part{Length: h.Size})
}

// copy copies a part of a file.
func (p *packer) copy(w io.Writer, file string, f *os.File, part sparse.Part) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{w},
		ctxReader{p.ctx, io.NewSectionReader(f, part.Offset, part.Length)}, p.buf)
	if err != nil {
		return err
	}
	if n < part.Length {
		return p.fail(file, turnstone.KindUnavailable,
			fmt.Errorf("the file became shorter while it was read"),
			"try again when no program writes to the file")
	}
	return nil
}

func (p *packer) fail(file string, kind turnstone.Kind, err error, hint string) error {
	return packError(filepath.Join(p.root.Name(), file), kind, err, hint)
}

// ctxReader ends with ctx.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

func packError(subject string, kind turnstone.Kind, err error, hint string) error {
	return turnstone.NewError("archive.pack", kind, subject, err).WithHint(hint)
}

func kindOf(err error) turnstone.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return turnstone.KindNotFound
	case errors.Is(err, syscall.ENOTDIR):
		return turnstone.KindInvalid
	}
	return turnstone.KindUnavailable
}

// cause removes the operation and the path, which the error contains as its subject.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
