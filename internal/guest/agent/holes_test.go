package agent

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sparse"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// TestHoles checks that a file with holes has them in the sandbox, whatever brings it in, and that they are not sent out to a
// client that asks for that.
func TestHoles(t *testing.T) {
	const size = 32 << 20
	content := make([]byte, size+3)
	copy(content[size:], "end")
	src := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := (&sparse.Writer{File: f}).CopyFrom(bytes.NewReader(content), make([]byte, 1<<20)); err != nil ||
		n != int64(len(content)) {
		t.Fatal(n, err)
	}
	data := func(path string) (n int64) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		for _, p := range sparse.Parts(f, int64(len(content)), 99) {
			n += p.Length
		}
		return n
	}
	if err := f.Close(); err != nil || data(src) > 1<<20 {
		t.Skipf("this file system does not tell holes: %v", err)
	}
	h, root := jail(t)
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarfiles.Pack(t.Context(), w, src, "unpacked")) }()
	if err := h.Put(t.Context(), "/area/", r); err != nil {
		t.Fatal(err)
	}
	if err := h.Feed(bytes.NewReader(content), func(id wire.StreamID) error {
		_, err := h.FileSystemWrite(t.Context(), &wire.FileSystemWriteParams{Path: "/area/written", Stream: id})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"unpacked", "written"} {
		path := filepath.Join(root, "area", name)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if n := data(path); n > 1<<20 {
			t.Errorf("%s: %d bytes are no hole", name, n)
		}
		for _, holes := range []bool{false, true} {
			var b bytes.Buffer
			err := h.Pack(t.Context(), wire.FileSystemPackParams{Path: "/area/" + name, Holes: holes}, &b)
			if small := b.Len() < 1<<20; err != nil || small != holes {
				t.Errorf("%s, with holes %v: %d bytes, %v", name, holes, b.Len(), err)
			}
		}
	}
	if err := h.Put(t.Context(), "/area/written", bytes.NewReader(folder(t))); turnstone.KindOf(err) != turnstone.KindInvalid ||
		turnstone.HintOf(err) == "" {
		t.Errorf("a folder in the place of a file: %v", err)
	}
}

// folder returns a tar stream of a folder.
func folder(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tarfiles.Pack(t.Context(), &b, t.TempDir(), "folder"); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
