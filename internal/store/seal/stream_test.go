package seal_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/seal"
)

const (
	header = 56
	chunk  = 64 << 10
	sealed = chunk + 16
)

func readFile(d *seal.Domain, b []byte, context string) ([]byte, error) {
	r, err := d.NewReader(bytes.NewReader(b), context)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// readParts reads a file with ReadAt, from its end to its beginning.
func readParts(d *seal.Domain, b []byte, context string) ([]byte, error) {
	f, err := d.OpenFile(bytes.NewReader(b), int64(len(b)), context)
	if err != nil {
		return nil, err
	}
	p := make([]byte, f.Size())
	for end := len(p); end > 0; {
		start := max(0, end-50_000)
		if _, err := f.ReadAt(p[start:end], int64(start)); err != nil {
			return nil, err
		}
		end = start
	}
	return p, nil
}

func TestStream(t *testing.T) {
	d, other := domainOf(t, 1), domainOf(t, 2)
	readers := []func(*seal.Domain, []byte, string) ([]byte, error){readFile, readParts}
	for _, n := range []int{0, 1, 100, chunk - 1, chunk, chunk + 1, 2 * chunk, 5*chunk + 77} {
		p := make([]byte, n)
		_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(p)
		var file bytes.Buffer
		check(t, sealFile(d, &file, "image", p))
		b := file.Bytes()
		if int64(len(b)) != seal.StreamSize(int64(n)) {
			t.Errorf("%d bytes take %d, want %d", n, len(b), seal.StreamSize(int64(n)))
		}
		for i, read := range readers {
			got, err := read(d, b, "image")
			if err != nil || !bytes.Equal(got, p) {
				t.Errorf("reader %d: %d bytes: got %d, %v", i, n, len(got), err)
			}
			_, err = read(d, b, "capture")
			wantKind(t, err, turnstone.KindIntegrity)
			_, err = read(other, b, "image")
			wantKind(t, err, turnstone.KindUnavailable)
			for _, k := range []int{0, 10, header - 1, header, header + 15, len(b) - 1,
				header + sealed, header + 2*sealed} {
				if k < len(b) {
					_, err = read(d, b[:k], "image")
					wantKind(t, err, turnstone.KindIntegrity)
				}
			}
			for _, more := range [][]byte{{0}, make([]byte, 16), b[header:]} {
				_, err = read(d, append(bytes.Clone(b), more...), "image")
				wantKind(t, err, turnstone.KindIntegrity)
			}
			for _, at := range []int{0, 30, 55, header, len(b) - 1, header + sealed + 5} {
				if at < len(b) {
					bad := bytes.Clone(b)
					bad[at] ^= 1
					_, err = read(d, bad, "image")
					wantKind(t, err, turnstone.KindIntegrity)
				}
			}
		}
	}
}

// TestStreamChunks moves chunks within a file and between files of the same domain and context.
func TestStreamChunks(t *testing.T) {
	d := domainOf(t, 1)
	p := make([]byte, 4*chunk)
	var one, two bytes.Buffer
	check(t, sealFile(d, &one, "x", p))
	check(t, sealFile(d, &two, "x", p))
	a, b := one.Bytes(), two.Bytes()
	part := func(b []byte, i int) []byte { return b[header+i*sealed:][:sealed] }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, file := range map[string][]byte{
		"swapped":       join(a[:header], part(a, 1), part(a, 0), part(a, 2), part(a, 3)),
		"repeated":      join(a[:header], part(a, 0), part(a, 0), part(a, 2), part(a, 3)),
		"left out":      join(a[:header], part(a, 0), part(a, 2), part(a, 3)),
		"of another":    join(a[:header], part(a, 0), part(b, 1), part(a, 2), part(a, 3)),
		"cut at chunk":  join(a[:header], part(a, 0), part(a, 1), part(a, 2)),
		"with one more": join(a, part(a, 3)),
		"other header":  join(b[:header], a[header:]),
		"empty end":     join(a, make([]byte, 16)),
	} {
		for i, read := range []func(*seal.Domain, []byte, string) ([]byte, error){readFile,
			readParts} {
			if _, err := read(d, file, "x"); turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Errorf("chunks %s, reader %d: %v", name, i, err)
			}
		}
	}
}

func TestStreamErrors(t *testing.T) {
	d := domainOf(t, 1)
	cause := errors.New("the disk is gone")
	w, err := d.NewWriter(&failAfter{n: 1, err: cause}, "x")
	check(t, err)
	_, err = w.Write(make([]byte, 3*chunk))
	if !errors.Is(err, cause) {
		t.Errorf("a failing write: %v", err)
	}
	if err := w.Close(); !errors.Is(err, cause) {
		t.Errorf("its close: %v", err)
	}
	var file bytes.Buffer
	w, err = d.NewWriter(&file, "x")
	check(t, err)
	check(t, w.Close())
	check(t, w.Close())
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("a complete file is written to")
	}
	file.Reset()
	check(t, sealFile(d, &file, "x", make([]byte, 3*chunk)))
	b := file.Bytes()
	// An error of the source is not damage, and short reads are no end.
	r, err := d.NewReader(io.MultiReader(bytes.NewReader(b[:header+sealed+9]),
		iotest.ErrReader(cause)), "x")
	check(t, err)
	if _, err := io.ReadAll(r); !errors.Is(err, cause) {
		t.Errorf("a failing read: %v", err)
	}
	r, err = d.NewReader(iotest.OneByteReader(bytes.NewReader(b)), "x")
	check(t, err)
	if got, err := io.ReadAll(r); err != nil || len(got) != 3*chunk {
		t.Errorf("byte by byte: %d, %v", len(got), err)
	}
	f, err := d.OpenFile(bytes.NewReader(b), int64(len(b)), "x")
	check(t, err)
	_, err = f.ReadAt(make([]byte, 1), -1)
	wantKind(t, err, turnstone.KindInvalid)
	if n, err := f.ReadAt(make([]byte, 10), f.Size()-4); n != 4 || err != io.EOF {
		t.Errorf("beyond the end: %d, %v", n, err)
	}
	if n, err := f.ReadAt(make([]byte, 10), f.Size()+4); n != 0 || err != io.EOF {
		t.Errorf("behind the end: %d, %v", n, err)
	}
}

// failAfter fails after n writes.
type failAfter struct {
	n   int
	err error
}

func (f *failAfter) Write(p []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, f.err
	}
	return len(p), nil
}

func FuzzStream(f *testing.F) {
	d := domainOf(f, 1)
	for _, n := range []int{0, 10, chunk + 3} {
		var file bytes.Buffer
		check(f, sealFile(d, &file, "x", make([]byte, n)))
		f.Add(file.Bytes(), 0, byte(0))
		f.Add(file.Bytes(), header+3, byte(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, at int, x byte) {
		b = bytes.Clone(b)
		if at >= 0 && at < len(b) {
			b[at] ^= x
		}
		one, err1 := readFile(d, b, "x")
		two, err2 := readParts(d, b, "x")
		if (err1 == nil) != (err2 == nil) || err1 == nil && !bytes.Equal(one, two) {
			t.Fatalf("the readers differ: %v, %v", err1, err2)
		}
		if err1 == nil {
			for _, c := range one { // only sealed zeros are opened
				if c != 0 {
					t.Fatal("something else is opened")
				}
			}
		}
	})
}

func FuzzObject(f *testing.F) {
	d := domainOf(f, 1)
	name := seal.Name{1}
	good := sealObject(f, d, name, 99, []byte("stored"))
	f.Add(good, []byte{})
	f.Add([]byte("frame"), []byte("frame"))
	f.Fuzz(func(t *testing.T, b, frame []byte) {
		// Each process of a fuzz run seals the first seed with a nonce of its own.
		size, got, err := d.Open(bytes.Clone(b), name)
		if err == nil && (size != 99 || string(got) != "stored") {
			t.Fatal("invented bytes are opened")
		}
		if _, err := d.OpenBytes("x", b); err == nil {
			t.Fatal("invented bytes are opened")
		}
		size, got, err = d.Open(sealObject(t, d, name, len(frame)*2, frame), name)
		if err != nil || size != len(frame)*2 || !bytes.Equal(got, frame) {
			t.Fatalf("%q: %q, %v", frame, got, err)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	d := domainOf(b, 1)
	p := make([]byte, 300_000)
	frame := append(make([]byte, seal.HeaderSize, seal.PaddedSize(len(p)+8)), p...)
	var dst []byte
	b.Run("object-300k", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			dst, _ = d.Seal(dst[:0], frame, seal.Name{1}, len(p))
		}
	})
	b.Run("object-100", func(b *testing.B) {
		for b.Loop() {
			dst, _ = d.Seal(dst[:0], frame[:100], seal.Name{1}, len(p))
		}
	})
	b.Run("name", func(b *testing.B) {
		for b.Loop() {
			_, _ = d.NameOf(seal.Name{1})
		}
	})
	big := make([]byte, 64<<20)
	var file bytes.Buffer
	b.Run("stream-write", func(b *testing.B) {
		b.SetBytes(int64(len(big)))
		for b.Loop() {
			file.Reset()
			w, _ := d.NewWriter(&file, "x")
			_, _ = w.Write(big)
			_ = w.Close()
		}
	})
	b.Run("stream-read", func(b *testing.B) {
		b.SetBytes(int64(len(big)))
		for b.Loop() {
			r, err := d.NewReader(bytes.NewReader(file.Bytes()), "x")
			check(b, err)
			_, _ = io.Copy(io.Discard, r)
		}
	})
}
