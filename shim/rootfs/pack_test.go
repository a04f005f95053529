package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "a"), []byte("text"), 0o644))
	check(t, os.Chmod(filepath.Join(dir, "a"), os.ModeSetuid|0o755))
	check(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	check(t, os.Symlink("/etc/shadow", filepath.Join(dir, "link")))
	check(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	var b bytes.Buffer
	check(t, Pack(t.Context(), &b, dir, "", Limits{}))
	got := map[string]*tar.Header{}
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		got[h.Name] = h
	}
	if h := got["a"]; h == nil || h.Mode != 0o4755 || h.Size != 4 {
		t.Errorf("a: %+v", h)
	}
	if h := got["b"]; h == nil || h.Typeflag != tar.TypeLink || h.Linkname != "a" {
		t.Errorf("b: %+v", h)
	}
	if h := got["link"]; h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != "/etc/shadow" {
		t.Errorf("link: %+v", h)
	}
	if h := got["d"]; h == nil || h.Typeflag != tar.TypeDir || h.Mode != 0o700 {
		t.Errorf("d: %+v", h)
	}
	for _, l := range []Limits{{Bytes: 3}, {Entries: 2}, {Text: 10}} {
		if err := Pack(t.Context(), io.Discard, dir, "", l); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// TestPackFile packs a single file under another name.
func TestPackFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "source")
	check(t, os.WriteFile(name, []byte("text"), 0o644))
	var b bytes.Buffer
	check(t, Pack(t.Context(), &b, name, "file", Limits{}))
	h, err := tar.NewReader(&b).Next()
	if err != nil || h.Name != "file" {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestPackInPieces checks that a folder with many names is not read whole, and that neither a deep
// tree nor many hard links are too much for the packer.
func TestPackInPieces(t *testing.T) {
	dir := t.TempDir()
	for i := range 8 * pieceSize {
		check(t, os.Symlink("to", filepath.Join(dir, fmt.Sprintf("%0100d", i))))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := Pack(t.Context(), io.Discard, dir, "", Limits{Entries: 10})
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrTooLarge) || took > 1<<20 {
		t.Errorf("%v; it took %d bytes", err, took)
	}
	deep := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", maxDepth)+"d"), 0o755))
	if err := Pack(t.Context(), io.Discard, deep, "", Limits{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a deep tree: %v", err)
	}
}

// TestLinked checks that a file with several names is kept in mind until all of them were seen.
func TestLinked(t *testing.T) {
	p := packer{seen: map[inode]*linked{}}
	for i, want := range []string{"", "n0", "n0"} {
		if got := p.first(inode{1, 2}, fmt.Sprint("n", i), 3); got != want {
			t.Errorf("%d: %q", i, got)
		}
	}
	if len(p.seen) != 0 || p.names != 0 {
		t.Errorf("left: %v, %d bytes", p.seen, p.names)
	}
}
