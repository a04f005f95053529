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
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits bound what is packed; 0: no bound.
type Limits struct {
	Bytes   int64
	Entries int
	Text    int // bytes of names, links and attributes
}

// ErrTooLarge is in the chain of the error of a file tree beyond its Limits.
var ErrTooLarge = errors.New("too large for the sandbox")

// Pack writes the file tree at dir to w, with the names of its entries relative to dir. It keeps
// owners, modes, times, hard links and extended attributes; devices and sockets are left out. It
// follows no symbolic link. If dir is a file, the stream has it alone, under the name name.
func Pack(ctx context.Context, w io.Writer, dir, name string, l Limits) error {
	tw := tar.NewWriter(w)
	p := &packer{ctx: ctx, tw: tw, limits: l, seen: map[inode]*linked{}}
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
	if err := p.tree(st); err != nil {
		return err
	}
	return tw.Close()
}

// A folder is read in pieces, since an image may have one with millions of files, and the names of
// files with several hard links are kept until all of them were seen.
const (
	pieceSize = 1024     // entries
	maxDepth  = 256      // folders in each other, each of which is open
	maxNames  = 64 << 20 // bytes
)

// tree packs the root and what is below it.
func (p *packer) tree(root fs.FileInfo) error {
	if err := p.add(".", ".", root); err != nil {
		return err
	}
	d, err := p.root.Open(".")
	if err != nil {
		return err
	}
	return p.folder(d, ".", 1)
}

// folder packs what is in the folder d, whose name is dir, and closes d.
func (p *packer) folder(d *os.File, dir string, depth int) error {
	defer d.Close()
	if depth > maxDepth {
		return fmt.Errorf("more than %d folders in each other: %w", maxDepth, ErrTooLarge)
	}
	for {
		entries, err := d.ReadDir(pieceSize)
		slices.SortFunc(entries, func(a, b fs.DirEntry) int {
			return strings.Compare(a.Name(), b.Name())
		})
		for _, e := range entries {
			if err := p.entry(path.Join(dir, e.Name()), depth); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// entry packs a file, or a folder with what is in it.
func (p *packer) entry(file string, depth int) error {
	st, err := p.root.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a volume may change meanwhile
	}
	if err != nil {
		return err
	}
	if err := p.add(file, file, st); err != nil || !st.IsDir() {
		return err
	}
	d, err := p.root.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.folder(d, file, depth+1)
}

type inode struct{ dev, ino uint64 }

type packer struct {
	ctx     context.Context
	root    *os.Root
	tw      *tar.Writer
	limits  Limits
	seen    map[inode]*linked // files with several names
	names   int               // bytes that they take
	bytes   int64
	entries int
	text    int
}

func (p *packer) add(file, name string, st fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if p.entries++; p.limits.Entries > 0 && p.entries > p.limits.Entries {
		return fmt.Errorf("more than %d files: %w", p.limits.Entries, ErrTooLarge)
	}
	if err := p.count(len(name)); err != nil {
		return err
	}
	link := ""
	switch mode := st.Mode(); {
	case mode.IsRegular(), mode.IsDir(), mode&fs.ModeNamedPipe != 0:
	case mode&fs.ModeSymlink != 0:
		var err error
		if link, err = p.root.Readlink(file); err != nil {
			return err
		}
		if err := p.count(len(link)); err != nil {
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
		if first := p.first(inode{uint64(sys.Dev), sys.Ino}, name, uint64(sys.Nlink)); first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tw.WriteHeader(h)
		}
		if p.names > maxNames {
			return fmt.Errorf("the names of files with hard links have more than %d bytes: %w",
				maxNames, ErrTooLarge)
		}
	}
	if !st.Mode().IsRegular() {
		return p.tw.WriteHeader(h)
	}
	return p.content(file, h)
}

// count counts bytes of text.
func (p *packer) count(n int) error {
	if p.text += n; p.limits.Text > 0 && p.text > p.limits.Text {
		return fmt.Errorf("names and attributes have more than %d bytes: %w", p.limits.Text, ErrTooLarge)
	}
	return nil
}

// linked is a file with several names.
type linked struct {
	first string
	left  uint64 // names that were not seen yet
}

// linkedSize is what a linked takes in memory beside its name.
const linkedSize = 64

// first returns the first name of the file i, or nothing if that is name. links is the number of
// its names, of which some may be outside of the tree.
func (p *packer) first(i inode, name string, links uint64) string {
	l := p.seen[i]
	if l == nil {
		p.seen[i] = &linked{name, links - 1}
		p.names += len(name) + linkedSize
		return ""
	}
	if l.left--; l.left == 0 {
		delete(p.seen, i)
		p.names -= len(l.first) + linkedSize
	}
	return l.first
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
	for name, value := range h.PAXRecords {
		if err := p.count(len(name) + len(value)); err != nil {
			return err
		}
	}
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
		if strings.Contains(name, "=") { // the stream cannot have it
			continue
		}
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
