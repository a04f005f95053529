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

	"turnstone.dev/turnstone"
)

// Pack writes the file or folder at hostPath to w as a tar stream (pax where needed). The entries
// are named name, and name/… below a folder; an empty name means hostPath's own name. Pack follows
// a symbolic link at hostPath and keeps links below as links. It keeps modes and modification times
// but not owners, writes hard links as separate files, and skips sockets, pipes and devices. It
// stops soon after ctx ends.
func Pack(ctx context.Context, w io.Writer, hostPath, name string) error {
	return PackAll(ctx, w, []Item{{hostPath, name}})
}

// An Item is a file or folder to pack, and its name in the stream.
type Item struct{ HostPath, Name string }

// PackAll is Pack for several files and folders in one stream.
func PackAll(ctx context.Context, w io.Writer, items []Item) error {
	tw := tar.NewWriter(w)
	for _, i := range items {
		if err := pack(ctx, tw, i.HostPath, i.Name); err != nil {
			return err
		}
	}
	return tw.Close()
}

func pack(ctx context.Context, tw *tar.Writer, hostPath, name string) error {
	if name == "" {
		name = filepath.Base(filepath.Clean(hostPath))
	}
	if name == "/" || name == "." || name == ".." {
		return packError(hostPath, turnstone.KindInvalid,
			errors.New("the path has no name of its own"), "name the file or folder itself")
	}
	real, err := filepath.EvalSymlinks(hostPath)
	if err != nil {
		return packError(hostPath, kindOf(err), cause(err), "check the path")
	}
	dir, start := real, "."
	if st, err := os.Stat(real); err == nil && !st.IsDir() {
		dir, start = filepath.Split(real)
	}
	root, err := os.OpenRoot(cmp.Or(dir, "."))
	if err != nil {
		return packError(hostPath, kindOf(err), cause(err), "check its permissions")
	}
	defer func() { _ = root.Close() }()
	return packRoot(ctx, tw, root, start, name)
}

// PackRoot is Pack for the file or folder start of root. It reads nothing outside of root, even if
// links change meanwhile. It follows a link at start if the link leads to a file.
func PackRoot(ctx context.Context, w io.Writer, root *os.Root, start, name string) error {
	tw := tar.NewWriter(w)
	if err := packRoot(ctx, tw, root, start, name); err != nil {
		return err
	}
	return tw.Close()
}

func packRoot(ctx context.Context, tw *tar.Writer, root *os.Root, start, name string) error {
	start = path.Clean(start)
	p := packer{ctx: ctx, root: root, start: start, tw: tw, buf: make([]byte, 256<<10)}
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
		return p.entry(file, path.Join(name, filepath.ToSlash(rel)), d)
	})
}

type packer struct {
	ctx   context.Context
	root  *os.Root
	start string
	tw    *tar.Writer
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
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tw},
		ctxReader{p.ctx, io.LimitReader(f, h.Size)}, p.buf)
	if err != nil {
		return err
	}
	if n < h.Size {
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
	if errors.Is(err, fs.ErrNotExist) {
		return turnstone.KindNotFound
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
