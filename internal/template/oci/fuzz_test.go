package oci

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// FuzzLayers checks that any layers are either rejected, or result in a tree with valid names, and
// a readable image.
func FuzzLayers(f *testing.F) {
	f.Add(ocitest.Tar(f, bash, ocitest.Dir("a"), ocitest.File("a/x", "1"), ocitest.Link("y",
		"a/x")), ocitest.Tar(f, ocitest.File("a/.wh.x", ""), ocitest.Symlink("s", "../a")))
	f.Add(ocitest.Gzip(f, ocitest.Tar(f, bash, ocitest.Symlink("l", "/a/../.."))),
		ocitest.Tar(f, ocitest.File("l/n", ""), ocitest.File(".wh..wh..opq", "")))
	f.Add(sparseTar(1<<20), []byte{})
	f.Add(ocitest.Tar(f,
		ocitest.Entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 5}}),
		ocitest.Tar(f, ocitest.File("d/x", "")))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, one, two []byte) {
		if len(one)+len(two) > 64<<10 {
			return
		}
		tree := newTree(limits{2000, 1 << 20, 100_000})
		var blobs []*os.File
		req := Request{Image: &Image{}, TempDir: dir, Workdir: "/w"}
		for _, b := range [][]byte{one, two} {
			file := spool(t, b)
			tree.layer++
			s, err := openLayer(t.Context(), file, int64(len(b)), nil, nil)
			if err != nil {
				return
			}
			s.plain.left = 4 << 20
			var n int64
			err = tree.read(s, 100, &n)
			s.close()
			if err != nil {
				return
			}
			if n > 16<<20 {
				return // valid, and too slow to write here
			}
			blobs = append(blobs, file)
			req.Image.Layers = append(req.Image.Layers, Layer{Size: int64(len(b))})
		}
		names(t, tree.root, 0)
		if tree.finish(t.Context(), req, &Result{}) != nil {
			return // usually it has no bash
		}
		out, err := os.Create(filepath.Join(dir, "root.erofs"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		req.Out = out
		if err := tree.write(t.Context(), req, blobs, &Result{}); err != nil {
			if turnstone.KindOf(Reference{}.failed(err)) == turnstone.KindIntegrity {
				t.Fatal(err) // both reads have the same result
			}
			return
		}
		b, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		fsys, err := erofs.Open(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		(&root{FS: fsys}).list(t)
	})
}

func names(t *testing.T, n *node, depth int) {
	if depth > 5000 {
		t.Fatal("too deep")
	}
	for name, kid := range n.kids {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") ||
			len(name) > maxName {
			t.Fatalf("a file is called %q", name)
		}
		if kid.isDir() {
			names(t, kid, depth+1)
		}
	}
}

// FuzzConfig checks manifests, indexes and configs of any content.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` +
		someDigest + `"]},"config":{"User":"x","WorkingDir":"../..","Env":["A=1"]}}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"` + someDigest +
		`","platform":{"os":"linux","architecture":"amd64"}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := choose(b); err == nil && !validDigest(d) {
			t.Fatalf("chose %q", d)
		}
		img := &Image{Layers: []Layer{{}}}
		if img.config(b) != nil {
			return
		}
		if img.Workdir != "" && (!filepath.IsAbs(img.Workdir) ||
			filepath.Clean(img.Workdir) != img.Workdir) || !validDigest(img.Layers[0].DiffID) {
			t.Fatalf("%+v", img)
		}
	})
}
