package snapshots

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// TestDifference checks that a file is restored from another file and the differences, with any
// holes in both.
func TestDifference(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		size := rapid.Int64Range(1, 40*pageSize).Draw(r, "size")
		if rapid.Bool().Draw(r, "large") {
			size += 5 * comparePart
		}
		file := func(name string) *os.File {
			f, err := os.CreateTemp(dir, name)
			if err != nil {
				r.Fatal(err)
			}
			if err := f.Truncate(size); err != nil {
				r.Fatal(err)
			}
			return f
		}
		from, to := file("from"), file("to")
		defer func() { _, _ = from.Close(), to.Close() }()
		for range rapid.IntRange(0, 6).Draw(r, "writes") {
			f := rapid.SampledFrom([]*os.File{from, to}).Draw(r, "file")
			at := rapid.Int64Range(0, size-1).Draw(r, "at")
			b := bytes.Repeat([]byte{rapid.Byte().Draw(r, "byte")},
				rapid.IntRange(1, 3*pageSize).Draw(r, "length"))
			if _, err := f.WriteAt(b[:min(int64(len(b)), size-at)], at); err != nil {
				r.Fatal(err)
			}
		}
		data, out := filepath.Join(dir, "data"), filepath.Join(dir, "out")
		defer func() { _, _ = os.Remove(data), os.Remove(out) }()
		d, err := diff(t.Context(), from, to, data)
		if err != nil {
			r.Fatal(err)
		}
		m := Packed[string]{Format: PackFormat, RAM: d}
		p, err := parsePacked[string](m.Encode())
		if err != nil {
			r.Fatal(err)
		}
		in, err := os.Open(data)
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		if err := patch(t.Context(), from, out, size, part{p.RAM, in}); err != nil {
			r.Fatal(err)
		}
		want, err := os.ReadFile(to.Name())
		if err != nil {
			r.Fatal(err)
		}
		got, err := os.ReadFile(out)
		if err != nil || !bytes.Equal(got, want) {
			r.Fatalf("%d bytes, want %d: they differ (%v)", len(got), len(want), err)
		}
		_, _ = os.Remove(from.Name()), os.Remove(to.Name())
	})
	if n < 10 {
		t.Errorf("only %d cases", n)
	}
}

// TestPatchRefuses checks that mismatching parts are rejected.
func TestPatchRefuses(t *testing.T) {
	dir := t.TempDir()
	base, err := os.Create(filepath.Join(dir, "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = base.Close() }()
	content := make([]byte, pageSize)
	good := difference{Size: 4 * pageSize, Runs: [][2]int64{{pageSize, pageSize}},
		Data: turnstone.DigestBytes(content)}
	for name, change := range map[string]func(*difference){
		"another size":      func(d *difference) { d.Size = pageSize },
		"another digest":    func(d *difference) { d.Data = turnstone.DigestBytes(nil) },
		"bytes are missing": func(d *difference) { d.Runs = [][2]int64{{0, 2 * pageSize}} },
		"bytes are left":    func(d *difference) { d.Runs = nil },
	} {
		d := good
		change(&d)
		if err := patch(t.Context(), base, filepath.Join(dir, "out "+name), 4*pageSize,
			part{d, bytes.NewReader(content)}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := patch(t.Context(), base, filepath.Join(dir, "out"), 4*pageSize,
		part{good, bytes.NewReader(content)}); err != nil {
		t.Fatal(err)
	}
}

// FuzzPack checks that any manifest is rejected, or has runs that are in order and within the file.
func FuzzPack(f *testing.F) {
	f.Add([]byte(`{"format":1,"ram":{"size":8192,"runs":[[0,4096]]}}`))
	f.Add([]byte(`{"format":1,"ram":{"size":8192,"runs":[[4096,9223372036854775807]]}}`))
	f.Add([]byte(`{"format":1,"scratch":{"size":1,"runs":[[0,1],[0,1]]},"layers":["../x"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packed[string]
		if json.Unmarshal(b, &p) != nil || p.check() != nil {
			if _, err := parsePacked[string](b); err == nil {
				t.Fatal("it is taken")
			}
			return
		}
		for _, d := range []difference{p.RAM, p.Scratch} {
			at, sum := int64(0), int64(0)
			for _, r := range d.Runs {
				if r[0] < at || r[1] <= 0 || r[0]+r[1] > d.Size {
					t.Fatalf("%v of %d", r, d.Size)
				}
				at, sum = r[0]+r[1], sum+r[1]
			}
			if sum > d.Size {
				t.Fatalf("%d bytes of %d", sum, d.Size)
			}
		}
	})
}
