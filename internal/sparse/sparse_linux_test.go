package sparse

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func newFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// tellsHoles skips a test where the file system of temporary files does not tell holes.
func tellsHoles(t testing.TB) {
	t.Helper()
	f := newFile(t)
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if data, hole, err := Next(f, 0); err != nil || data != hole {
		t.Skipf("this file system does not tell holes: %d, %d, %v", data, hole, err)
	}
}

// TestWriter: what is written is what was read, for any sizes of reads and buffers, and each block of zeros is left out.
func TestWriter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var want []byte
		for range rapid.IntRange(0, 6).Draw(rt, "runs") {
			run := make([]byte, rapid.IntRange(0, 3*block).Draw(rt, "size"))
			if rapid.Bool().Draw(rt, "data") {
				for i := range run {
					run[i] = byte(rand.IntN(256))
				}
			}
			want = append(want, run...)
		}
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		var data, holes int64
		w := Writer{File: f, Take: func(n int64, hole bool) error {
			if hole {
				holes += n
			} else {
				data += n
			}
			return nil
		}}
		n, err := w.CopyFrom(&smallReads{want, rapid.IntRange(1, 5000).Draw(rt, "most")},
			make([]byte, block*rapid.IntRange(1, 4).Draw(rt, "blocks")))
		if err != nil || n != int64(len(want)) || data+holes != n {
			rt.Fatalf("%d bytes of %d, %d and %d: %v", n, len(want), data, holes, err)
		}
		zero := int64(0)
		for b := range slices.Chunk(want, block) {
			if isZero(b) {
				zero += int64(len(b))
			}
		}
		got, err := os.ReadFile(f.Name())
		if err != nil || !bytes.Equal(got, want) || holes != zero {
			rt.Fatalf("%d bytes, %d left out, %d zeros: %v", len(got), holes, zero, err)
		}
	})
}

type smallReads struct {
	b    []byte
	most int
}

func (r *smallReads) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.most)], r.b)
	r.b = r.b[n:]
	return n, nil
}

// TestWriterErrors: an error of Take, or of the reader, ends the write.
func TestWriterErrors(t *testing.T) {
	full, lost := errors.New("full"), errors.New("lost")
	w := Writer{File: newFile(t), Take: func(int64, bool) error { return full }}
	if _, err := w.CopyFrom(bytes.NewReader([]byte("x")), make([]byte, block)); !errors.Is(err, full) {
		t.Error(err)
	}
	w = Writer{File: newFile(t)}
	if _, err := w.CopyFrom(io.MultiReader(bytes.NewReader([]byte("x")), failing{lost}),
		make([]byte, block)); !errors.Is(err, lost) {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestParts: holes of at least 64 KiB are no part, smaller ones belong to one, and a file with more parts than are
// wanted loses its smallest holes.
func TestParts(t *testing.T) {
	tellsHoles(t)
	const k = 1 << 10
	for name, tt := range map[string]struct {
		size int64
		at   []int64 // blocks of data
		most int
		want []Part
	}{
		"small":          {1000, nil, 9, []Part{{0, 1000}}},
		"empty":          {0, nil, 9, []Part{{0, 0}}},
		"a hole":         {1 << 40, nil, 9, nil},
		"at the end":     {1<<30 + 4096, []int64{1 << 30}, 9, []Part{{1 << 30, 4096}}},
		"behind the end": {1 << 30, []int64{1 << 30}, 9, nil},
		"in the middle": {1 << 30, []int64{512 * k, 516 * k, 2048 * k}, 9,
			[]Part{{512 * k, 8 * k}, {2048 * k, 4 * k}}},
		"small holes": {200 * k, []int64{20 * k, 60 * k, 180 * k}, 9, []Part{{0, 64 * k}, {180 * k, 20 * k}}},
		"too many": {1 << 30, []int64{0, 128 * k, 256 * k, 384 * k, 512 << 20}, 4,
			[]Part{{0, 260 * k}, {384 * k, 4 * k}, {512 << 20, 4 * k}}},
	} {
		f := newFile(t)
		for _, at := range tt.at {
			if _, err := f.WriteAt(bytes.Repeat([]byte{1}, 4096), at); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Truncate(tt.size); err != nil {
			t.Fatal(err)
		}
		if name == "behind the end" { // the file has grown since its size was asked for
			if _, err := f.WriteAt([]byte{1}, tt.size+4096); err != nil {
				t.Fatal(err)
			}
		}
		if got := Parts(f, tt.size, tt.most); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestManyParts: the parts of a file of many parts are few, in order, and have all of its data.
func TestManyParts(t *testing.T) {
	tellsHoles(t)
	const most, count = 16, 200
	random := rand.New(rand.NewPCG(1, 2))
	f := newFile(t)
	var at []int64
	off := int64(0)
	for range count {
		off += 4096 << random.IntN(14)
		if _, err := f.WriteAt([]byte{1}, off); err != nil {
			t.Fatal(err)
		}
		at = append(at, off)
	}
	size := off + 1<<20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	parts := Parts(f, size, most)
	end := int64(-1)
	for _, p := range parts {
		if p.Offset <= end || p.Length <= 0 {
			t.Errorf("%v", parts)
		}
		end = p.Offset + p.Length
	}
	for _, off := range at {
		if !slices.ContainsFunc(parts, func(p Part) bool { return p.Offset <= off && off < p.Offset+p.Length }) {
			t.Errorf("%d is in no part of %v", off, parts)
		}
	}
	if len(parts) > most || len(parts) < most/2 {
		t.Errorf("%d parts", len(parts))
	}
}
