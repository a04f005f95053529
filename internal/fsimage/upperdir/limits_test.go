package upperdir

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// For any size of a disk, reading has absolute bounds.
func TestBoundsAreAbsolute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Bytes: rapid.Int64Range(0, 1<<62).Draw(t, "bytes"),
			Entries: rapid.IntRange(0, 1<<62).Draw(t, "entries")}
		given := o.Entries
		o.defaults()
		if o.Entries < 1 || given == 0 && o.Entries > mostEntries || given > 0 &&
			o.Entries > given || o.FileSize > defaultFile || o.Meta > defaultMeta {
			t.Fatalf("%+v", o)
		}
	})
}

// endless is a stream of infinitely many entries.
type endless struct {
	n   int
	buf bytes.Buffer
}

func (e *endless) Read(b []byte) (int, error) {
	for e.buf.Len() == 0 {
		w := tar.NewWriter(&e.buf)
		h := &tar.Header{Name: "./", Typeflag: tar.TypeDir}
		if e.n > 0 {
			h = &tar.Header{Name: "f" + strings.Repeat("x", e.n%50) + string(rune('a'+e.n%26)) +
				itoa(e.n), Typeflag: tar.TypeReg}
		}
		e.n++
		if err := w.WriteHeader(h); err != nil {
			return 0, err
		}
		_ = w.Flush()
	}
	return e.buf.Read(b)
}

func itoa(n int) string {
	var digits []byte
	for ; n > 0; n /= 10 {
		digits = append(digits, byte('0'+n%10))
	}
	return string(digits)
}

// An infinite guest is stopped by the number of its entries, on the largest disk.
func TestEndlessExport(t *testing.T) {
	e := &endless{}
	_, err := Read(t.Context(), e, t.TempDir(),
		Options{Bytes: int64(turnstone.MaxDisk), Entries: 20_000})
	if turnstone.KindOf(err) != turnstone.KindExhausted ||
		!strings.Contains(err.Error(), "more than 20000 of them") {
		t.Errorf("after %d entries: %v", e.n, err)
	}
	if e.n > 30_000 {
		t.Errorf("%d entries were read", e.n)
	}
}

// A file is rejected by its announced size, before any of it is read.
func TestLargeFile(t *testing.T) {
	for name, h := range map[string]*tar.Header{
		"whole": {Name: "a", Typeflag: tar.TypeReg, Size: 2 << 40},
		"sparse": {Name: "a", Typeflag: tar.TypeReg,
			PAXRecords: map[string]string{recordSize: "2199023255552", recordSparse: ""}},
	} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range []*tar.Header{{Name: "./", Typeflag: tar.TypeDir}, h} {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Read(t.Context(), io.MultiReader(&buf, zeros{}), t.TempDir(),
			Options{Bytes: int64(turnstone.MaxDisk), Holes: 4 << 40})
		if turnstone.KindOf(err) != turnstone.KindExhausted ||
			!strings.Contains(err.Error(), "a file of more than 1.0 TiB") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A path's length is bounded, whatever the agent sends.
func TestLongPath(t *testing.T) {
	for length, ok := range map[int]bool{maxPath: true, maxPath + 1: false} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		if err := w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir}); err != nil {
			t.Fatal(err)
		}
		path := ""
		for len(path) < length {
			path += strings.Repeat("d", min(200, length-len(path)))
			h := &tar.Header{Name: path + "/", Typeflag: tar.TypeDir,
				Mode: 0o755, Format: tar.FormatPAX}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if len(path) < length-1 {
				path += "/"
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := Read(t.Context(), &buf, t.TempDir(), Options{Bytes: int64(turnstone.MaxDisk)})
		if ok && err != nil || !ok &&
			(turnstone.KindOf(err) != turnstone.KindExhausted ||
				!strings.Contains(err.Error(), "nested so deep")) {
			t.Errorf("%d: %v", length, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// An almost full disk ends the reading before the disk is full.
func TestRoom(t *testing.T) {
	full := errors.New("full")
	asked := 0
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{{Name: "./", Typeflag: tar.TypeDir},
		{Name: "a", Typeflag: tar.TypeReg, Size: 64 << 20}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Read(t.Context(), io.MultiReader(&buf, zeros{}), t.TempDir(),
		Options{Room: func() error {
			if asked++; asked > 3 {
				return full
			}
			return nil
		}})
	if !errors.Is(err, full) || asked != 4 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
