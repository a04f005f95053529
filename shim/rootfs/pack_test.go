package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
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
	for _, l := range []Limits{{Bytes: 3}, {Entries: 2}} {
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
