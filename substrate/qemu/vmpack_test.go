package qemu

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/disk"
)

// TestDifference: a file is made again from another one and what differs, whatever
// of both is holes.
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
			b := bytes.Repeat([]byte{rapid.Byte().Draw(r, "byte")}, rapid.IntRange(1, 3*pageSize).Draw(r, "length"))
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
		m := packManifest{Format: packFormat, RAM: d}
		m.Sum = m.sum()
		b, err := json.Marshal(m)
		if err != nil {
			r.Fatal(err)
		}
		p, err := parsePack(b)
		if err != nil {
			r.Fatal(err)
		}
		made, err := patch(t.Context(), from, p.RAM, data, out, size)
		if err != nil {
			r.Fatal(err)
		}
		_ = made.Close()
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

// TestPatchRefuses what does not fit.
func TestPatchRefuses(t *testing.T) {
	dir := t.TempDir()
	base, err := os.Create(filepath.Join(dir, "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = base.Close() }()
	data := filepath.Join(dir, "data")
	content := make([]byte, pageSize)
	if err := os.WriteFile(data, content, 0o600); err != nil {
		t.Fatal(err)
	}
	good := difference{Size: 4 * pageSize, Runs: [][2]int64{{pageSize, pageSize}}, Data: turnstone.DigestBytes(content)}
	for name, change := range map[string]func(*difference){
		"another size":      func(d *difference) { d.Size = pageSize },
		"another digest":    func(d *difference) { d.Data = turnstone.DigestBytes(nil) },
		"bytes are missing": func(d *difference) { d.Runs = [][2]int64{{0, 2 * pageSize}} },
		"bytes are left":    func(d *difference) { d.Runs = nil },
	} {
		d := good
		change(&d)
		if f, err := patch(t.Context(), base, d, data, filepath.Join(dir, "out "+name), 4*pageSize); err == nil {
			_ = f.Close()
			t.Errorf("%s: no error", name)
		}
	}
	f, err := patch(t.Context(), base, good, data, filepath.Join(dir, "out"), 4*pageSize)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// FuzzPack: whatever a manifest says, it is refused, or its stretches are in order
// and within the file.
func FuzzPack(f *testing.F) {
	f.Add([]byte(`{"format":1,"ram":{"size":8192,"runs":[[0,4096]]}}`))
	f.Add([]byte(`{"format":1,"ram":{"size":8192,"runs":[[4096,9223372036854775807]]}}`))
	f.Add([]byte(`{"format":1,"scratch":{"size":1,"runs":[[0,1],[0,1]]},"layers":["../x"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p packManifest
		if json.Unmarshal(b, &p) != nil || p.check() != nil {
			if _, err := parsePack(b); err == nil {
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

// FuzzMapping: a line of /proc/PID/maps holds a file's name, which may be anything.
func FuzzMapping(f *testing.F) {
	f.Add("7f0c00000000-7f0c40000000 rw-p 00001000 fe:00 12345   /root/x (deleted)")
	f.Add("0-0 rw-p 0 0:0 0")
	f.Add("ffffffffffffffff-0 rw-p 0 0:0 0")
	f.Fuzz(func(t *testing.T, line string) {
		if m, ok := parseMapping(line); ok && (m.start < 0 || m.end <= m.start || m.offset < 0) {
			t.Fatalf("%+v", m)
		}
	})
}

// TestPrivateMemory finds what this process has written to a private mapping.
func TestPrivateMemory(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "ram")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const pages = 64
	before := make([]byte, pages*pageSize)
	for i := range before {
		before[i] = byte(rand.Uint32())
	}
	if _, err := f.WriteAt(before, 0); err != nil {
		t.Fatal(err)
	}
	mem, unmap := mapPrivate(t, f, pages*pageSize)
	defer unmap()
	want := bytes.Clone(before)
	for _, page := range []int{0, 1, 2, 17, 40, 41, 63} {
		mem[page*pageSize+page] ^= 0xff
		want[page*pageSize+page] ^= 0xff
	}
	_ = mem[30*pageSize] // only read
	runs, err := privateMemory(t.Context(), os.Getpid(), f)
	if err != nil {
		t.Fatal(err)
	}
	var offsets []int64
	for _, r := range runs {
		offsets = append(offsets, r.offset/pageSize, r.length/pageSize)
	}
	if got := offsets; len(got) != 8 || got[0] != 0 || got[1] != 3 || got[2] != 17 || got[3] != 1 || got[4] != 40 || got[5] != 2 || got[6] != 63 {
		t.Errorf("stretches %v", got)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	if err := disk.Clone(t.Context(), out, f); err != nil {
		t.Fatal(err)
	}
	if err := copyMemory(t.Context(), out, os.Getpid(), runs); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the memory is another: %v", err)
	}
}

// TestUnpackAfterUpdate: a machine that was kept goes on only from the snapshot that
// it is the difference to, and it is said when that is gone.
func TestUnpackAfterUpdate(t *testing.T) {
	s := &Substrate{home: &home.Home{Dir: t.TempDir()}, accel: accelTCG, version: "QEMU 7"}
	m := substrate.Machine{Shape: turnstone.DefaultShape()}
	packed, dir := t.TempDir(), filepath.Join(t.TempDir(), "vm")
	write := func(p packManifest) {
		t.Helper()
		p.Sum = p.sum()
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(packed, manifestFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, kind turnstone.Kind) {
		t.Helper()
		err := s.Unpack(t.Context(), m, packed, dir)
		if turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", what, err, turnstone.KindOf(err))
		}
	}
	refused("nothing there", turnstone.Integrity)
	id := s.identity(m)
	write(packManifest{Format: packFormat, Identity: id})
	refused("the template's snapshot is gone", turnstone.Unavailable)
	id.Init = turnstone.DigestBytes(nil)
	write(packManifest{Format: packFormat, Identity: id})
	refused("another agent", turnstone.Unavailable)
	write(packManifest{Format: packFormat, Identity: s.identity(m), Layers: []string{"l"}})
	refused("layers", turnstone.Integrity)
	write(packManifest{Format: packFormat + 1})
	refused("another format", turnstone.Integrity)
}

// mapPrivate maps f as QEMU maps a clone's memory.
func mapPrivate(t *testing.T, f *os.File, size int) (mem []byte, unmap func()) {
	t.Helper()
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	return mem, func() { _ = unix.Munmap(mem) }
}
