package treeindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/store/tree"
)

// An imageNode is a file of a root image (EROFS). It implements tree.Node.
type imageNode struct {
	img  *treeImage
	path string // without a leading slash; the root's is "."
	info fs.FileInfo
	stat *erofs.Stat
}

// treeImage is an open root image.
type treeImage struct {
	fsys fs.FS
	data io.ReaderAt
	size int64 // of the image
}

func openTreeImage(data io.ReaderAt, size int64) (*imageNode, error) {
	fsys, err := erofs.Open(data)
	if err != nil {
		return nil, err
	}
	img := &treeImage{fsys: fsys, data: data, size: size}
	info, err := fs.Stat(fsys, ".")
	if err != nil {
		return nil, err
	}
	return img.node(".", info)
}

func (img *treeImage) node(path string, info fs.FileInfo) (*imageNode, error) {
	stat, ok := info.Sys().(*erofs.Stat)
	if !ok {
		return nil, fmt.Errorf("%q: the image's reader does not report its attributes", path)
	}
	return &imageNode{img, path, info, stat}, nil
}

// Attr implements tree.Node.
func (n *imageNode) Attr() (tree.Attr, error) {
	mode := n.stat.Mode
	a := tree.Attr{Mode: uint32(mode.Perm()), UID: n.stat.UID, GID: n.stat.GID,
		MTime: tree.Time{Sec: int64(n.stat.Mtime), Nsec: int32(n.stat.MtimeNs)}}
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000,
		fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			a.Mode |= value
		}
	}
	switch mode.Type() {
	case fs.ModeDir:
		a.Type = tree.Dir
	case 0:
		a.Type, a.Size = tree.File, n.stat.Size
	case fs.ModeSymlink:
		a.Type = tree.Symlink
		target, err := fs.ReadLink(n.img.fsys, n.path)
		if err != nil {
			return tree.Attr{}, err
		}
		a.Target = target
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		a.Type = tree.Block
		if mode&fs.ModeCharDevice != 0 {
			a.Type = tree.Char
		}
		dev := uint64(n.stat.Rdev)
		a.Major, a.Minor = unix.Major(dev), unix.Minor(dev)
	case fs.ModeNamedPipe:
		a.Type = tree.FIFO
	case fs.ModeSocket:
		return tree.Attr{}, nil // in no tree
	default:
		return tree.Attr{}, errors.New("is of an unknown type")
	}
	for name, value := range n.stat.Xattrs {
		// The reader writes these two names with a dot, because the format has them as prefixes.
		if strings.HasPrefix(name, "system.posix_acl_") {
			name = strings.TrimSuffix(name, ".")
		}
		a.Xattrs = append(a.Xattrs, tree.Xattr{Name: name, Value: []byte(value)})
	}
	slices.SortFunc(a.Xattrs, func(x, y tree.Xattr) int { return strings.Compare(x.Name, y.Name) })
	return a, nil
}

// Inode implements tree.Node.
func (n *imageNode) Inode() (id uint64, names uint32) {
	if n.stat.Mode.IsDir() {
		return uint64(n.stat.Ino), 1
	}
	return uint64(n.stat.Ino), uint32(max(n.stat.Nlink, 1))
}

// Children implements tree.Node.
func (n *imageNode) Children(context.Context) ([]tree.Child, error) {
	entries, err := fs.ReadDir(n.img.fsys, n.path)
	if err != nil {
		return nil, err
	}
	kids := make([]tree.Child, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		kid, err := n.img.node(path.Join(n.path, e.Name()), info)
		if err != nil {
			return nil, err
		}
		kids = append(kids, tree.Child{Name: e.Name(), Node: kid})
	}
	return kids, nil
}

// Open implements tree.Node.
func (n *imageNode) Open() (io.ReadCloser, error) {
	x, err := n.extents()
	if err != nil {
		return nil, err
	}
	return &placed{extentReader: extentReader{data: n.img.data, extents: x}, extents: x}, nil
}

// extents returns the positions of the file's content in the image.
func (n *imageNode) extents() ([]extent, error) {
	if n.stat.Size == 0 {
		return nil, nil
	}
	ranger, ok := n.info.(interface{ DataRange() []erofs.DataRange })
	if !ok {
		return nil, errors.New("the image's reader does not report the position of its content")
	}
	var out []extent
	left := n.stat.Size
	for _, r := range ranger.DataRange() {
		x := extent{r.Offset, r.Size}
		if x.size <= 0 || x.size > left || r.Device != 0 || !x.within(n.img.size) {
			return nil, errors.New("its content is outside of the image")
		}
		left -= x.size
		out = append(out, x)
	}
	if left != 0 {
		return nil, errors.New("its content is not wholly in the image")
	}
	return out, nil
}

// An extent is a part of a file's content: bytes of the image, or zeros.
type extent struct {
	offset int64 // in the image; -1: zeros
	size   int64
}

func (x extent) within(size int64) bool {
	return x.offset == -1 || x.offset >= 0 && x.size <= size && x.offset <= size-x.size
}

// placed is an image file's reader that also returns the content's positions.
type placed struct {
	extentReader
	extents []extent
}

func (p *placed) Close() error { return nil }

// extentReader reads extents one after another.
type extentReader struct {
	data    io.ReaderAt
	extents []extent
	off     int64 // in the first of extents
}

// Read implements io.Reader.
func (r *extentReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.extents) > 0 && r.off == r.extents[0].size {
		r.extents, r.off = r.extents[1:], 0
	}
	if len(r.extents) == 0 {
		return 0, io.EOF
	}
	x := r.extents[0]
	p = p[:min(int64(len(p)), x.size-r.off)]
	if x.offset == -1 {
		clear(p)
		r.off += int64(len(p))
		return len(p), nil
	}
	n, err := r.data.ReadAt(p, x.offset+r.off)
	r.off += int64(n)
	switch {
	case n > 0:
		return n, nil
	case errors.Is(err, io.EOF):
		return 0, io.ErrUnexpectedEOF
	}
	return 0, err
}
