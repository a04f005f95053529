package qemu

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// FuzzMapping checks lines of /proc/PID/maps, which contain arbitrary file names.
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

// TestPrivateMemory finds this process's writes to a private mapping.
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
	if got := offsets; len(got) != 8 || got[0] != 0 || got[1] != 3 || got[2] != 17 || got[3] != 1 ||
		got[4] != 40 || got[5] != 2 || got[6] != 63 {
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

// TestUnpackAfterUpdate checks that a kept machine resumes only from the snapshot that it is the
// difference to, and that a missing snapshot is reported.
func TestUnpackAfterUpdate(t *testing.T) {
	s := &Substrate{home: &statedir.Dir{Root: t.TempDir()}, accel: accelTCG, version: "QEMU 7",
		wall: Jail{Wall: jailed}}
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
		err := s.Unpack(t.Context(), m, substrate.PackedDir(packed), dir)
		if turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", what, err, turnstone.KindOf(err))
		}
	}
	refused("nothing there", turnstone.KindIntegrity)
	id := s.identity(m)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat, Identity: id})
	refused("the template's snapshot is gone", turnstone.KindUnavailable)
	id.Init = turnstone.DigestBytes(nil)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat, Identity: id})
	refused("another agent", turnstone.KindUnavailable)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat, Identity: s.identity(m),
		Layers: []string{"l"}})
	refused("layers", turnstone.KindIntegrity)
	write(snapshots.Packed[identity]{Format: snapshots.PackFormat + 1})
	refused("another format", turnstone.KindIntegrity)
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

// TestMovedTo checks that a kept machine resumes if all visible properties match, and that
// otherwise the difference is named, with both values.
func TestMovedTo(t *testing.T) {
	here, err := host.CPUModel()
	if err != nil {
		t.Fatal(err)
	}
	now := identity{QEMU: "1.0", HostCPU: "c", Kernel: turnstone.DigestBytes([]byte("kernel")),
		Root: turnstone.DigestBytes([]byte("root"))}
	none := turnstone.DigestBytes(nil)
	for name, c := range map[string]struct {
		change func(*identity)
		cpu    *host.Model
		says   []string
	}{
		"the same":          {func(*identity) {}, nil, nil},
		"another microcode": {func(id *identity) { id.HostCPU = "d" }, here, nil},
		"another CPU": {func(id *identity) { id.HostCPU = "d" }, &host.Model{Name: "EPYC"},
			[]string{"CPU", "EPYC", here.Name}},
		"an older pack's CPU": {func(id *identity) { id.HostCPU = "d" }, nil,
			[]string{"CPU", here.Name}},
		"another program": {func(id *identity) { id.QEMU = "2.0\x1b" }, here,
			[]string{"2.0?, now 1.0"}},
		"another guest kernel": {func(id *identity) { id.Kernel = none }, here,
			[]string{"kernel", now.Kernel.Short(), none.Short()}},
		"another template": {func(id *identity) { id.Root = none }, here,
			[]string{"template", now.Root.Short(), none.Short()}},
		"another shape": {func(id *identity) { id.Shape.CPUs = 7 }, here,
			[]string{"7 CPUs"}},
	} {
		was := now
		c.change(&was)
		got := was.movedTo(now, c.cpu)
		if len(c.says) == 0 && got != "" {
			t.Errorf("%s: %q", name, got)
		}
		for _, text := range c.says {
			if !strings.Contains(got, text) {
				t.Errorf("%s: %q has no %q", name, got, text)
			}
		}
	}
}

// TestKeepTakesAJail checks that without namespaces a kept machine is neither created nor restored,
// whatever it contains.
func TestKeepTakesAJail(t *testing.T) {
	for _, w := range []host.Wall{filtered, open} {
		s := &Substrate{wall: Jail{Wall: w, Reason: "none here"}}
		err := s.Abilities().Keep
		if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "none here") {
			t.Errorf("%s: %v", w, err)
		}
		if got := s.Unpack(t.Context(), substrate.Machine{}, substrate.PackedDir(t.TempDir()),
			filepath.Join(t.TempDir(), "vm")); got == nil || got.Error() != err.Error() {
			t.Errorf("%s: %v", w, got)
		}
	}
	if err := (&Substrate{wall: Jail{Wall: jailed}}).Abilities().Keep; err != nil {
		t.Error(err)
	}
}
