// Package erofstest writes EROFS images for tests.
package erofstest

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// Write writes files into a new image at path.
func Write(t testing.TB, path string, files []treetest.File) {
	t.Helper()
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar2erofs.New(out, tar2erofs.Options{TempDir: t.TempDir()})
	types := map[tree.Type]byte{tree.File: tar.TypeReg, tree.Dir: tar.TypeDir,
		tree.Symlink: tar.TypeSymlink,
		tree.Char:    tar.TypeChar, tree.Block: tar.TypeBlock, tree.FIFO: tar.TypeFifo}
	node, err := treetest.NewNode(files...)
	if err != nil {
		t.Fatal(err)
	}
	at := func(p string) *treetest.Node {
		n := node
		for _, name := range strings.Split(strings.Trim(p, "/"), "/") {
			if name != "" {
				n = n.Child(name)
			}
		}
		return n
	}
	for _, f := range files {
		n := at(f.Path)
		h := &tar.Header{Name: "./" + strings.TrimPrefix(f.Path, "/"), Typeflag: types[n.A.Type],
			Mode: int64(n.A.Mode), Uid: int(n.A.UID), Gid: int(n.A.GID),
			Size: n.A.Size, ModTime: time.Unix(n.A.MTime.Sec, int64(n.A.MTime.Nsec)),
			Linkname: n.A.Target,
			Devmajor: int64(n.A.Major), Devminor: int64(n.A.Minor), PAXRecords: map[string]string{}}
		for _, x := range n.A.Xattrs {
			h.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
		}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, strings.TrimPrefix(f.Link, "/"), 0
		}
		if err := w.Add(h, bytes.NewReader(n.Data)); err != nil {
			t.Fatalf("%q: %v", f.Path, err)
		}
	}
	if err := errors.Join(w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
}
