package lowerdir

import (
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone/internal/store/tree"
)

// A layerFile is a file of an image.
type layerFile struct {
	model
	whiteout, opaque bool
	image, ino       int64
	children         map[string]*layerFile
}

// readLayer reads the directory dir of an image.
func readLayer(t testing.TB, number int, f *os.File, dir string) *layerFile {
	t.Helper()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	var top *layerFile
	at := map[string]*layerFile{}
	err = fs.WalkDir(img, dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		l := readFile(t, img, path, d, int64(number))
		at[path] = l
		if path == dir {
			top = l
			return nil
		}
		i := strings.LastIndexByte(path, '/')
		at[path[:i]].children[path[i+1:]] = l
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func readFile(t testing.TB, img fs.FS, path string, d fs.DirEntry, number int64) *layerFile {
	t.Helper()
	fi, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*erofs.Stat)
	l := &layerFile{image: number, ino: st.Ino, children: map[string]*layerFile{}}
	mode := st.Mode // fi.Mode() drops setuid, setgid and sticky
	l.attr = tree.Attr{Mode: uint32(mode.Perm()), UID: st.UID, GID: st.GID,
		MTime: tree.Time{Sec: int64(st.Mtime), Nsec: int32(st.MtimeNs)}}
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000,
		fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			l.attr.Mode |= bit
		}
	}
	l.attr.Major, l.attr.Minor = st.Rdev>>8&0xfff, st.Rdev&0xff|st.Rdev>>12&0xfff00
	switch mode.Type() {
	case 0:
		l.attr.Type, l.attr.Size = tree.File, fi.Size()
		file, err := img.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
		l.content = string(b)
	case fs.ModeDir:
		l.attr.Type = tree.Dir
	case fs.ModeSymlink:
		l.attr.Type = tree.Symlink
		target, err := img.(interface{ ReadLink(string) (string, error) }).ReadLink(path)
		if err != nil {
			t.Fatal(err)
		}
		l.attr.Target = target
	case fs.ModeDevice:
		l.attr.Type = tree.Block
	case fs.ModeDevice | fs.ModeCharDevice:
		l.attr.Type = tree.Char
		l.whiteout = st.Rdev == 0
	case fs.ModeNamedPipe:
		l.attr.Type = tree.FIFO
	}
	for name, value := range st.Xattrs {
		if name == opaqueXattr {
			l.opaque = value == "y"
			continue
		}
		l.attr.Xattrs = append(l.attr.Xattrs,
			tree.Xattr{Name: strings.TrimSuffix(name, "."), Value: []byte(value)})
	}
	slices.SortFunc(l.attr.Xattrs, func(a, b tree.Xattr) int {
		return strings.Compare(a.Name, b.Name)
	})
	return l
}

// merge implements overlayfs.rst for a directory in several layers, highest first. Hard links in an
// image stay hard links.
func mergeLayers(stack []*layerFile, seen map[[2]int64]*model) *model {
	top := stack[0]
	m := &model{attr: top.attr, children: map[string]*model{}}
	done := map[string]bool{}
	for i, layer := range stack {
		for name, f := range layer.children {
			if done[name] {
				continue
			}
			done[name] = true
			switch {
			case f.whiteout:
			case f.attr.Type == tree.Dir:
				m.children[name] = mergeLayers(below(name, stack[i:]), seen)
			default:
				id := [2]int64{f.image, f.ino}
				if seen[id] == nil {
					seen[id] = &model{attr: f.attr, content: f.content}
				}
				m.children[name] = seen[id]
			}
		}
		if layer.opaque {
			break
		}
	}
	return m
}

// below returns the merged directories called name, highest first.
func below(name string, stack []*layerFile) (dirs []*layerFile) {
	for _, layer := range stack {
		f := layer.children[name]
		if f == nil {
			if layer.opaque {
				break
			}
			continue
		}
		if f.whiteout || f.attr.Type != tree.Dir {
			break
		}
		dirs = append(dirs, f)
		if f.opaque || layer.opaque {
			break
		}
	}
	return dirs
}
