// Package rootfs packs a container's root file system, or a volume, as a tar stream.
package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits bound what is packed; 0: no bound.
type Limits struct {
	Bytes   int64
	Entries int
}

// ErrTooLarge is in the chain of the error of a file tree beyond its Limits.
var ErrTooLarge = errors.New("too large for the sandbox")

// Pack writes the file tree at dir to w, with the names of its entries relative to dir. It keeps
// owners, modes, times, hard links and extended attributes; devices and sockets are left out. It
// follows no symbolic link. If dir is a file, the stream has it alone, under the name name.
func Pack(ctx context.Context, w io.Writer, dir, name string, l Limits) error {
	tw := tar.NewWriter(w)
	p := &packer{ctx: ctx, tw: tw, limits: l, seen: map[inode]string{}}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		root, err := os.OpenRoot(path.Dir(dir))
		if err != nil {
			return err
		}
		defer root.Close()
		if p.root = root; st.Mode().IsRegular() {
			err = p.add(path.Base(dir), name, st)
		}
		return errors.Join(err, tw.Close())
	}
	if p.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	defer p.root.Close()
	err = fs.WalkDir(p.root.FS(), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a volume may change meanwhile
		}
		if err != nil {
			return err
		}
		return p.add(file, file, st)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

type inode struct{ dev, ino uint64 }

type packer struct {
	ctx     context.Context
	root    *os.Root
	tw      *tar.Writer
	limits  Limits
	seen    map[inode]string // the first names of files with several
	bytes   int64
	entries int
}

func (p *packer) add(file, name string, st fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if p.entries++; p.limits.Entries > 0 && p.entries > p.limits.Entries {
		return fmt.Errorf("more than %d files: %w", p.limits.Entries, ErrTooLarge)
	}
	link := ""
	switch mode := st.Mode(); {
	case mode.IsRegular(), mode.IsDir(), mode&fs.ModeNamedPipe != 0:
	case mode&fs.ModeSymlink != 0:
		var err error
		if link, err = p.root.Readlink(file); err != nil {
			return err
		}
	default:
		return nil
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name, h.Format = name, tar.FormatPAX
	h.Uname, h.Gname = "", ""
	sys, _ := st.Sys().(*syscall.Stat_t)
	if sys != nil && st.Mode().IsRegular() && sys.Nlink > 1 {
		key := inode{uint64(sys.Dev), sys.Ino}
		if first, ok := p.seen[key]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tw.WriteHeader(h)
		}
		p.seen[key] = name
	}
	if !st.Mode().IsRegular() {
		return p.tw.WriteHeader(h)
	}
	return p.content(file, h)
}

// content adds a file. One that changes meanwhile has the size that it had when it was opened.
func (p *packer) content(file string, h *tar.Header) error {
	f, err := p.root.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s: it is no longer a file", file))
	}
	h.Size = st.Size()
	if p.bytes += h.Size; p.limits.Bytes > 0 && p.bytes > p.limits.Bytes {
		return fmt.Errorf("more than %d bytes: %w", p.limits.Bytes, ErrTooLarge)
	}
	h.PAXRecords = xattrs(f)
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.tw, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size { // it was cut
		_, err = io.CopyN(p.tw, zeros{}, h.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// xattrs returns the extended attributes of f that have a meaning in another machine.
func xattrs(f *os.File) map[string]string {
	var names [4096]byte
	n, err := unix.Flistxattr(int(f.Fd()), names[:])
	if err != nil || n == 0 {
		return nil
	}
	all := map[string]string{}
	for _, name := range splitZero(names[:n]) {
		if name != "security.capability" && !strings.HasPrefix(name, "user.") {
			continue
		}
		var value [4096]byte
		if n, err := unix.Fgetxattr(int(f.Fd()), name, value[:]); err == nil {
			all["SCHILY.xattr."+name] = string(value[:n])
		}
	}
	return all
}

func splitZero(b []byte) (names []string) {
	start := 0
	for i, c := range b {
		if c == 0 {
			names = append(names, string(b[start:i]))
			start = i + 1
		}
	}
	return names
}
