package ext4_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A line describes a file; two trees are equal if their lines are equal.
type line struct {
	path, what string
	sum        string
	ino        uint64
}

func format(a tree.Attr, names uint32) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %04o %d:%d %d.%09d size=%d dev=%d,%d %q names=%d", a.Type, a.Mode, a.UID,
		a.GID, a.MTime.Sec, a.MTime.Nsec, a.Size, a.Major, a.Minor, a.Target, names)
	for _, x := range a.Xattrs {
		fmt.Fprintf(&b, " %s=%x", x.Name, x.Value)
	}
	return b.String()
}

// imageLines lists an image with all of its data.
func imageLines(ctx context.Context, fs *ext4.FS) ([]line, error) {
	root, err := fs.Root()
	if err != nil {
		return nil, err
	}
	var out []line
	var walk func(path string, n tree.Node) error
	walk = func(path string, n tree.Node) error {
		a, err := n.Attr()
		if err != nil {
			return err
		}
		l := line{path: path}
		var names uint32
		l.ino, names = n.Inode()
		if a.Type == tree.Dir {
			names = 0
		}
		if l.what = format(a, names); a.Type == tree.File {
			r, err := n.Open()
			if err != nil {
				return err
			}
			h := xxhash.New() // fast: there are files of gigabytes, all holes
			size, err := io.Copy(h, r)
			if err != nil {
				return err
			}
			if size != a.Size {
				return fmt.Errorf("%s: read %d bytes of %d", path, size, a.Size)
			}
			l.sum = fmt.Sprintf("%x", h.Sum(nil))
		}
		out = append(out, l)
		if a.Type != tree.Dir {
			return nil
		}
		children, err := n.Children(ctx)
		if err != nil {
			return err
		}
		for _, c := range children {
			if path == "" && c.Name == "lost+found" {
				continue
			}
			if err := walk(path+"/"+c.Name, c.Node); err != nil {
				return err
			}
		}
		return nil
	}
	err = walk("", root)
	return out, err
}

// hostLines lists a folder of the host.
func hostLines(t *testing.T, root string) []line {
	t.Helper()
	var out []line
	var walk func(path string)
	walk = func(path string) {
		full := root + path
		var st unix.Stat_t
		must(t, unix.Lstat(full, &st))
		l := line{path: path, ino: st.Ino}
		a := tree.Attr{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
			MTime: tree.Time{Sec: st.Mtim.Sec, Nsec: int32(st.Mtim.Nsec)}}
		names := uint32(st.Nlink)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			a.Type, names = tree.Dir, 0
		case unix.S_IFREG:
			a.Type, a.Size = tree.File, st.Size
			f, err := os.Open(full)
			must(t, err)
			h := xxhash.New()
			_, err = io.Copy(h, f)
			must(t, err)
			must(t, f.Close())
			l.sum = fmt.Sprintf("%x", h.Sum(nil))
		case unix.S_IFLNK:
			a.Type = tree.Symlink
			target, err := os.Readlink(full)
			must(t, err)
			a.Target = target
		case unix.S_IFCHR:
			a.Type, a.Major, a.Minor = tree.Char, unix.Major(st.Rdev), unix.Minor(st.Rdev)
		case unix.S_IFBLK:
			a.Type, a.Major, a.Minor = tree.Block, unix.Major(st.Rdev), unix.Minor(st.Rdev)
		case unix.S_IFIFO:
			a.Type = tree.FIFO
		}
		a.Xattrs = hostXattrs(t, full)
		l.what = format(a, names)
		out = append(out, l)
		if a.Type == tree.Dir {
			entries, err := os.ReadDir(full)
			must(t, err)
			for _, e := range entries {
				if path == "" && e.Name() == "lost+found" {
					continue
				}
				walk(path + "/" + e.Name())
			}
		}
	}
	walk("")
	return out
}

func hostXattrs(t *testing.T, path string) (out []tree.Xattr) {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	must(t, err)
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	sort.Strings(names)
	for _, name := range names {
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		must(t, err)
		out = append(out, tree.Xattr{Name: name, Value: value[:n]})
	}
	return out
}

// compare compares two listings, and that the same paths are one file in both.
func compare(t *testing.T, got, want []line) {
	t.Helper()
	for i := 0; i < len(got) || i < len(want); i++ {
		switch {
		case i >= len(got):
			t.Fatalf("missing: %q", want[i].path)
		case i >= len(want):
			t.Fatalf("too much: %q", got[i].path)
		case got[i].path != want[i].path:
			t.Fatalf("line %d: %q, want %q", i, got[i].path, want[i].path)
		case got[i].what != want[i].what:
			t.Errorf("%q:\n got %s\nwant %s", got[i].path, got[i].what, want[i].what)
		case got[i].sum != want[i].sum:
			t.Errorf("%q has other content", got[i].path)
		}
	}
	if g, w := groups(got), groups(want); g != w {
		t.Errorf("hard links:\n got %s\nwant %s", g, w)
	}
}

func groups(lines []line) string {
	paths := map[uint64][]string{}
	for _, l := range lines {
		paths[l.ino] = append(paths[l.ino], l.path)
	}
	var out []string
	for _, p := range paths {
		if len(p) > 1 {
			sort.Strings(p)
			out = append(out, strings.Join(p, " "))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "; ")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens an image of this test.
func open(t testing.TB, path string) *ext4.FS {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	st, err := f.Stat()
	must(t, err)
	fs, err := ext4.Open(f, st.Size())
	must(t, err)
	return fs
}

// join is filepath.Join without cleaning names.
func join(elem ...string) string { return strings.Join(elem, string(filepath.Separator)) }
