package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestCopies checks that a copy is equal, and that a hole in the original uses no space in it.
func TestCopies(t *testing.T) {
	const size = 64<<20 + 123
	dir := t.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = src.Close() }()
	// The second run is longer than a single copy operation.
	_, err1 := src.WriteAt([]byte("begin"), 0)
	_, err2 := src.WriteAt(bytes.Repeat([]byte("0123456789abcdef"), 17<<16), 8<<20)
	if err := errors.Join(err1, err2, src.Truncate(size)); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(src.Name())
	if err != nil {
		t.Fatal(err)
	}
	for name, copying := range map[string]func(context.Context, *os.File,
		*os.File) error{"Clone": Clone, "CopySparse": CopySparse} {
		dst, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(copying(t.Context(), dst, src), dst.Close()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := os.ReadFile(dst.Name())
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the copy is another (%v)", name, err)
		}
		if room := onDisk(t, dst.Name()); room > 20<<20 {
			t.Errorf("%s: 17 MiB of data take %d bytes", name, room)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	dst, err := os.Create(filepath.Join(dir, "canceled"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dst.Close() }()
	if err := CopySparse(over, dst, src); !errors.Is(err, context.Canceled) {
		t.Errorf("a copy that is no longer wanted: %v", err)
	}
}

func onDisk(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestBlank checks that a blank disk is created once for each size, and again if it was truncated.
func TestBlank(t *testing.T) {
	if _, err := host.FindSystem("mke2fs"); err != nil {
		t.Skip("no mke2fs: apt-get install e2fsprogs")
	}
	h, size := &statedir.Dir{Root: t.TempDir()}, turnstone.Bytes(256<<20)
	blank := func() os.FileInfo {
		t.Helper()
		path, err := Blank(t.Context(), "test.disk", h, size)
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Size() != int64(size) {
			t.Fatalf("%v (%v)", st, err)
		}
		// ext4's magic number, in the superblock at 1024
		magic, b := []byte{0x53, 0xef}, make([]byte, 2)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.ReadAt(b, 1024+56); err != nil || !bytes.Equal(b, magic) {
			t.Errorf("it is no ext4: %x (%v)", b, err)
		}
		return st
	}
	one, two := blank(), blank()
	if !os.SameFile(one, two) {
		t.Error("it was made twice")
	}
	if room := onDisk(t, h.Path("cache", one.Name())); room > 1<<20 {
		t.Errorf("an empty disk takes %d bytes", room)
	}
	if err := os.Truncate(h.Path("cache", one.Name()), 4096); err != nil {
		t.Fatal(err)
	}
	blank()
	entries, err := os.ReadDir(h.Path("cache"))
	if err != nil || len(entries) != 1 {
		t.Errorf("the cache has %v (%v)", entries, err)
	}
}

func TestNoMke2fs(t *testing.T) {
	err := format(t.Context(), "test.disk", filepath.Join(t.TempDir(), "none"))
	if err == nil {
		t.Error("a file that is not there became a disk")
	}
}

// TestOverlay checks that the written parts replace the file, zeros included, and that nothing
// beyond the limit is written.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	if !KeepsHoles(dir) {
		t.Skip("the file system does not tell what was written")
	}
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		const page, pages = 4096, 40
		file := func(name string) *os.File {
			f, err := os.Create(filepath.Join(dir, name))
			if err != nil {
				r.Fatal(err)
			}
			return f
		}
		dst, src := file("dst"), file("src")
		defer func() { _, _ = dst.Close(), src.Close() }()
		want := bytes.Repeat([]byte{1}, page*pages)
		if _, err := dst.WriteAt(want, 0); err != nil {
			r.Fatal(err)
		}
		if err := src.Truncate(page * pages); err != nil {
			r.Fatal(err)
		}
		limit := rapid.Int64Range(0, page*pages).Draw(r, "limit")
		for i := range pages {
			if !rapid.Bool().Draw(r, "written") {
				continue
			}
			b := bytes.Repeat([]byte{rapid.SampledFrom([]byte{0, 2}).Draw(r, "byte")}, page)
			if _, err := src.WriteAt(b, int64(i*page)); err != nil {
				r.Fatal(err)
			}
			if off := int64(i * page); off < limit {
				copy(want[off:min(limit, off+page)], b)
			}
		}
		if err := Overlay(t.Context(), dst, src, limit); err != nil {
			r.Fatal(err)
		}
		got, err := os.ReadFile(dst.Name())
		if err != nil || !bytes.Equal(got, want) {
			r.Fatalf("the file is another: %v", err)
		}
	})
	if n < 10 {
		t.Errorf("only %d cases", n)
	}
}

// TestOpenLayers checks that only intact images of a slot's size are opened, and no more than there
// are slots.
func TestOpenLayers(t *testing.T) {
	dir := t.TempDir()
	image := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, short := image("good", substrate.SlotSize), image("short", substrate.SlotSize-1)
	layers, err := OpenLayers("test.open", []string{good, good})
	if err != nil || len(layers) != 2 {
		t.Fatal(layers, err)
	}
	for _, f := range layers {
		_ = f.Close()
	}
	for _, path := range []string{short, dir, filepath.Join(dir, "none")} {
		if layers, err := OpenLayers("test.open", []string{good,
			path}); turnstone.KindOf(err) != turnstone.KindIntegrity || layers != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := OpenLayers("test.open", slices.Repeat([]string{good},
		substrate.MaxLayers+1)); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}
