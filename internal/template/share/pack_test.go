package share

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/template/oci"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
	"turnstone.dev/turnstone/internal/template/treeindex"
)

const epoch = 1767225600 // the time of files that come from no layer

// files are those of a template, including all that a pull would add.
func files() []treetest.File {
	var all []treetest.File
	add := func(f treetest.File) {
		f.MTime = epoch
		all = append(all, f)
	}
	for _, dir := range []string{"/", "/bin/", "/dev/", "/etc/", "/proc/", "/run/", "/sys/",
		"/usr/", "/workspace/"} {
		add(treetest.File{Path: dir})
	}
	add(treetest.File{Path: "/root/", Mode: 0o700})
	add(treetest.File{Path: "/tmp/", Mode: 0o1777})
	add(treetest.File{Path: "/etc/hostname", Data: "turn\n"})
	add(treetest.File{Path: "/etc/hosts",
		Data: "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"})
	add(treetest.File{Path: "/etc/resolv.conf"})
	add(treetest.File{Path: "/etc/machine-id", Mode: 0o444})
	add(treetest.File{Path: "/bin/bash", Mode: 0o755, Data: "#!"})
	add(treetest.File{Path: "/bin/sh", Target: "bash"})
	add(treetest.File{Path: "/usr/ping", Mode: 0o4755, UID: 0, GID: 7, Data: strings.Repeat("p", 9000),
		Xattrs: map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00",
			"user.note": "a=b\nc"}})
	add(treetest.File{Path: "/usr/first", UID: 1000, GID: 1000, Data: "both"})
	add(treetest.File{Path: "/usr/second", Link: "/usr/first"})
	add(treetest.File{Path: "/usr/pipe", Type: tree.FIFO, Mode: 0o600})
	add(treetest.File{Path: "/usr/null", Type: tree.Char, Mode: 0o666, Major: 1, Minor: 3})
	add(treetest.File{Path: "/usr/name with a line end\n", Data: "x", Nsec: 5})
	add(treetest.File{Path: "/usr/" + strings.Repeat("long", 60), Data: "x"})
	return all
}

// layerOf packs a tree into a file.
func layerOf(t *testing.T, src Source, ref turnstone.TreeRef) (oci.LayerFile, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return Layer(t.Context(), src, ref, f)
}

// TestThereAndBack checks that a template's tree has the same FS hash after a push and a pull, and
// that it is packed into the same bytes.
func TestThereAndBack(t *testing.T) {
	src := treetest.NewStore()
	ref := treetest.Make(t, src, files()...)
	layer, err := layerOf(t, src, ref)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := layerOf(t, src, ref); err != nil || again.Layer != layer.Layer {
		t.Errorf("packed again: %+v, %v", again, err)
	}
	srv := httptest.NewServer(ocitest.Handler())
	defer srv.Close()
	to, err := oci.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/mine:1")
	if err != nil {
		t.Fatal(err)
	}
	c := oci.New(oci.Options{Dir: t.TempDir()})
	d := turnstone.DigestBytes([]byte("spec"))
	if _, err := c.Push(t.Context(), to, oci.Artifact{Name: "mine", Digest: d, FSHash: ref.Hash},
		[]oci.LayerFile{layer}); err != nil {
		t.Fatal(err)
	}
	img, err := c.Resolve(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	if img.Artifact.FSHash != ref.Hash {
		t.Errorf("%+v", img.Artifact)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := c.Unpack(t.Context(), oci.Request{Image: img, Out: out, TempDir: t.TempDir(),
		Workdir: "/workspace"}); err != nil {
		t.Fatal(err)
	}
	root := treeindex.Root{Name: "mine", Path: out.Name(), Digest: d}
	if err := root.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, err := root.Index()
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	pulled := treetest.NewStore()
	back, err := x.Put(t.Context(), pulled)
	if err != nil {
		t.Fatal(err)
	}
	if back.Hash != ref.Hash {
		was, now := treetest.List(t, src, ref), treetest.List(t, pulled, back)
		for _, line := range was {
			if !slices.Contains(now, line) {
				t.Errorf("was %s", line)
			}
		}
		for _, line := range now {
			if !slices.Contains(was, line) {
				t.Errorf("now %s", line)
			}
		}
	}
}

// TestTarFaults checks what cannot be packed.
func TestTarFaults(t *testing.T) {
	src := treetest.NewStore()
	ref := treetest.Make(t, src, treetest.File{Path: "/a/.wh.b", Data: "x"})
	if err := Tar(t.Context(), src, ref, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "cannot be in a layer") {
		t.Errorf("%v", err)
	}
	ref = treetest.Make(t, src, treetest.File{Path: "/gone", Data: "gone"})
	src.Remove(turnstone.DigestBytes([]byte("gone")))
	if err := Tar(t.Context(), src, ref, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "/gone") {
		t.Errorf("%v", err)
	}
}

// TestTar checks the names in a stream.
func TestTar(t *testing.T) {
	src := treetest.NewStore()
	var b bytes.Buffer
	if err := Tar(t.Context(), src, treetest.Make(t, src, files()...), &b); err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(&b)
	links := 0
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(h.Name, "./") {
			t.Errorf("%q", h.Name)
		}
		if h.Typeflag == tar.TypeLink {
			links++
			if h.Linkname != "./usr/first" {
				t.Errorf("%q", h.Linkname)
			}
		}
	}
	if links != 1 {
		t.Errorf("%d links", links)
	}
}
