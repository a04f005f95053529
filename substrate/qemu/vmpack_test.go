package qemu

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/disk"
	"turnstone.dev/turnstone/substrate/snapshots"
)

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
	write := func(p snapshots.Packed[identity]) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(packed, manifestFile), p.Encode(), 0o600); err != nil {
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
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat, Identity: id})
	refused("the template's snapshot is gone", turnstone.Unavailable)
	id.Init = turnstone.DigestBytes(nil)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat, Identity: id})
	refused("another agent", turnstone.Unavailable)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat, Identity: s.identity(m), Layers: []string{"l"}})
	refused("layers", turnstone.Integrity)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat + 1})
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
