package treeindex

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs/erofstest"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func FuzzTreeIndex(f *testing.F) {
	c := placedContent{digest: rawDigest(turnstone.DigestBytes([]byte("x"))), size: 5,
		extents: []extent{{0, 2}, {-1, 3}}}
	d := turnstone.DigestBytes([]byte("image"))
	f.Add(encodeIndex(d, turnstone.TreeRef{Root: d, Hash: d}, []placedContent{c},
		[][]byte{[]byte("object")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseIndex(resealed(b))
		if err != nil {
			return
		}
		_ = x.each(func([]byte) error { return nil })
		for i := range len(x.contents) / contentEntry {
			size, extents, err := x.content(i, 100)
			if err != nil {
				continue
			}
			for _, e := range extents {
				size -= e.size
				if !e.within(100) {
					t.Fatal("outside of the image")
				}
			}
			if size != 0 {
				t.Fatal("another size")
			}
		}
		_ = x.hasSize(5)
		x.find(turnstone.DigestBytes([]byte("x")))
	})
}

// resealed gives an index the correct digest of its header, so that fuzzing reaches later checks.
func resealed(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) >= indexHeader {
		sum := sha256.Sum256(b[:indexHeader-32])
		copy(b[indexHeader-32:], sum[:])
	}
	return b
}

// FuzzTreeImage reads images with changed bytes: whatever the format's reader returns, building the
// tree ends, with a tree or with an error.
func FuzzTreeImage(f *testing.F) {
	path := filepath.Join(f.TempDir(), "root.erofs")
	erofstest.Write(f, path, []treetest.File{{Path: "/d/a", Data: "a"},
		{Path: "/d/b", Link: "/d/a"}, {Path: "/l", Target: "d"},
		{Path: "/page", Data: strings.Repeat("x", 5000)},
		{Path: "/x", Xattrs: map[string]string{"user.a": "b"}}})
	image, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(1024), []byte{1}, uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, at uint32, change []byte, at2 uint32, change2 []byte) {
		b := bytes.Clone(image)
		copy(b[int(at)%len(b):], change)
		copy(b[int(at2)%len(b):], change2)
		top, err := openTreeImage(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		_, _ = tree.Build(ctx, &collector{Hasher: tree.NewHasher()}, top,
			tree.BuildOptions{Parallel: 1})
		if ctx.Err() != nil {
			t.Fatal("building the tree does not end")
		}
	})
}
