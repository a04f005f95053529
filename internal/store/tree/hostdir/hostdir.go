//go:build linux

// Package hostdir presents a folder of this machine as a tree.Node. It follows no symlinks and
// opens every file by its path below the folder, so that concurrent renames cannot lead it outside.
package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Dir is an open folder: a tree.Node, safe for concurrent use.
type Dir struct {
	node
	path string
	fd   int

	mu   sync.Mutex
	ids  map[inode]uint64 // of files with several names
	last uint64
}

// inode identifies a file on the machine because a folder may contain mounts of other file systems.
type inode struct{ dev, ino uint64 }

// Open returns the folder at path, which may be a symlink. Close the folder after building the
// tree. Errors are of kind NotFound or Unavailable, including those of a file that changes while it
// is read or is not readable.
func Open(path string) (*Dir, error) {
	d := &Dir{path: path, ids: map[inode]uint64{}}
	d.node = node{top: d, id: 0, names: 1}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		d.fd = fd
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil {
			err = d.fill(&st, func() (string, error) { return "", nil },
				fmt.Sprintf("/proc/self/fd/%d/.", fd))
		}
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, d.fail(err)
	}
	return d, nil
}

// Close closes the folder. Its nodes cannot be opened afterwards.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// id numbers files so that names of the same file have the same number.
func (d *Dir) id(st *unix.Stat_t) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	several := st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR
	key := inode{st.Dev, st.Ino}
	if id, ok := d.ids[key]; ok && several {
		return id
	}
	d.last++
	if several {
		d.ids[key] = d.last
	}
	return d.last
}

// A node is a file below the folder, in the state at which its directory was read.
type node struct {
	top    *Dir
	parent *node // nil for the top folder
	name   string
	id     uint64
	names  uint32
	attr   tree.Attr
	sparse bool
	stamp  stamp
}

// A stamp detects changes of a file.
type stamp struct {
	inode
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{inode{st.Dev, st.Ino}, st.Size, st.Mtim, st.Ctim}
}

// Attr implements tree.Node.
func (n *node) Attr() (tree.Attr, error) { return n.attr, nil }

// Inode implements tree.Node. Directories have their own numbers because the same directory may be
// mounted twice.
func (n *node) Inode() (id uint64, names uint32) { return n.id, n.names }

// rel returns the path below the folder, "." for the folder itself.
func (n *node) rel() string {
	if n.parent == nil {
		return "."
	}
	var names []string
	for at := n; at.parent != nil; at = at.parent {
		names = append(names, at.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

func (n *node) fail(err error) error {
	out := turnstone.NewError("hostdir.read", turnstone.KindUnavailable, n.top.path, err)
	if n.parent != nil {
		out.Subject += "/" + n.rel()
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		out.Kind, out.Hint = turnstone.KindNotFound,
			"choose an existing folder that no program removes meanwhile"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		out.Hint = "make the whole folder readable: change its permissions, or run this as its " +
			"owner or as root"
	case errors.Is(err, unix.ENOTDIR) && n.parent == nil:
		out.Hint = "name a folder"
	case errors.Is(err, errChanged), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		out.Hint = "stop writing to the folder, and try again"
	}
	return out
}

var errChanged = errors.New("changed while it was read")

// Children implements tree.Node.
func (n *node) Children(ctx context.Context) ([]tree.Child, error) {
	fd, err := n.open(unix.O_DIRECTORY)
	if err != nil {
		return nil, n.fail(err)
	}
	f := os.NewFile(uintptr(fd), n.name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, n.fail(err)
	}
	slices.Sort(names)
	kids := make([]tree.Child, 0, len(names))
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		kid, err := n.child(fd, name)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile, which is equivalent to an earlier removal
		}
		if err != nil {
			return nil, kid.fail(err)
		}
		kids = append(kids, tree.Child{Name: name, Node: kid})
	}
	return kids, nil
}

func (n *node) child(dir int, name string) (*node, error) {
	kid := &node{top: n.top, parent: n, name: name}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return kid, err
	}
	readlink := func() (string, error) {
		buf := make([]byte, tree.MaxTarget+1)
		k, err := unix.Readlinkat(dir, name, buf)
		return string(buf[:max(k, 0)]), err
	}
	return kid, kid.fill(&st, readlink, fmt.Sprintf("/proc/self/fd/%d/%s", dir, name))
}

// fill copies st and reads the extended attributes of the file at path.
func (n *node) fill(st *unix.Stat_t, readlink func() (string, error), path string) (err error) {
	n.id, n.names = n.top.id(st), uint32(min(uint64(st.Nlink), 1<<32-1))
	n.stamp = stampOf(st)
	n.attr = tree.Attr{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		MTime: tree.Time{Sec: st.Mtim.Sec, Nsec: int32(st.Mtim.Nsec)}}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		n.attr.Type, n.names = tree.Dir, 1
	case unix.S_IFREG:
		n.attr.Type, n.attr.Size = tree.File, st.Size
		n.sparse = st.Blocks*512 < st.Size
	case unix.S_IFLNK:
		n.attr.Type = tree.Symlink
		if n.attr.Target, err = readlink(); err != nil {
			return err
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		n.attr.Type = tree.Char
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			n.attr.Type = tree.Block
		}
		n.attr.Major, n.attr.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	case unix.S_IFIFO:
		n.attr.Type = tree.FIFO
	default:
		return nil // a socket, which is never part of a tree
	}
	n.attr.Xattrs, err = xattrs(path)
	return err
}

// xattrs reads the extended attributes of the file at path that trees keep.
func xattrs(path string) ([]tree.Xattr, error) {
	var small [512]byte
	list, err := grown(small[:], func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	if errors.Is(err, unix.ENOTSUP) || err == nil && len(list) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("its extended attributes: %w", err)
	}
	var out []tree.Xattr
	for _, name := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if !tree.KeptXattr(name) {
			continue
		}
		value, err := grown(nil, func(b []byte) (int, error) {
			return unix.Lgetxattr(path, name, b)
		})
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("its extended attribute %q: %w", name, err)
		}
		out = append(out, tree.Xattr{Name: name, Value: value})
	}
	slices.SortFunc(out, func(a, b tree.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// grown calls read with a sufficiently large buffer: with an empty buffer, read returns the size.
func grown(buf []byte, read func([]byte) (int, error)) ([]byte, error) {
	for {
		n, err := read(buf)
		if err == nil && (len(buf) > 0 || n == 0) {
			return buf[:n], nil
		}
		if err == nil || errors.Is(err, unix.ERANGE) {
			if n, err = read(nil); err == nil {
				buf = make([]byte, n+1)
				continue
			}
		}
		return nil, err
	}
}

// open opens the file for reading if it is unchanged. No component of the path may be a symlink.
func (n *node) open(flags int) (int, error) {
	fd, err := openBelow(n.top.fd, n.rel(), flags|unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && !n.is(&st) {
		err = errChanged
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// is reports whether st belongs to n's file: the same directory with any content, or the same
// unchanged file.
func (n *node) is(st *unix.Stat_t) bool {
	now := stampOf(st)
	return now.inode == n.stamp.inode &&
		(n.attr.Type == tree.Dir || now == n.stamp && st.Mode&unix.S_IFMT == unix.S_IFREG)
}

// Open implements tree.Node.
func (n *node) Open() (io.ReadCloser, error) {
	fd, err := n.open(0)
	if err != nil {
		return nil, n.fail(err)
	}
	return &reader{n: n, f: os.NewFile(uintptr(fd), n.name), hole: -1}, nil
}
