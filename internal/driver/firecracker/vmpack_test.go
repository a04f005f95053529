package firecracker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/substrate"
)

// TestKeep checks that a kept machine resumes with its disk and its layers, and that it does not if
// its template's snapshot is missing, or was taken by another Firecracker.
func TestKeep(t *testing.T) {
	b := newBench(t, "")
	m := b.m
	m.Layers = []string{b.slot(t, "one", 0o444)}
	vm, err := b.s.Restore(within(t), m)
	check(t, err)
	disk, err := vm.(substrate.Disker).Disk()
	check(t, err)
	_, err = disk.WriteAt([]byte("written"), 4096)
	check(t, err)
	check(t, disk.Close())
	tmp := t.TempDir()
	whole, packed := filepath.Join(tmp, "whole"), filepath.Join(tmp, "packed")
	check(t, vm.(substrate.Snapshotter).Snapshot(within(t), whole))
	check(t, vm.Close())
	p, err := b.s.Pack(within(t), b.m, whole, packed)
	check(t, err)
	if len(p.Layers) != 1 || p.Layers[0] != "one" {
		t.Errorf("layers %q", p.Layers)
	}
	for _, name := range p.Files { // everything else is the template's
		if size := onDisk(t, filepath.Join(packed, name)); size > 1<<20 {
			t.Errorf("%s has %d bytes", name, size)
		}
	}
	check(t, os.RemoveAll(whole))
	check(t, b.s.unpack(within(t), m, substrate.PackedDir(packed), whole))
	for _, name := range []string{ramFile, stateFile} {
		if st, err := os.Stat(filepath.Join(whole, name)); err != nil ||
			st.Mode().Perm()&0o004 == 0 {
			t.Errorf("%s cannot be read by another user: %v", name, err)
		}
	}
	clone, err := b.s.RestoreFrom(within(t), b.m, whole)
	check(t, err)
	b.checkLayer(t)
	buf := make([]byte, 7)
	if _, err := clone.(*machine).scratch.ReadAt(buf, 4096); err != nil ||
		string(buf) != "written" {
		t.Errorf("the clone's disk has %q, %v", buf, err)
	}
	speak(t, clone)
	b.nothingLeft(t)
	refused := func(what string, kind turnstone.Kind) {
		t.Helper()
		dir := filepath.Join(tmp, "refused")
		if err := b.s.unpack(within(t), m, substrate.PackedDir(packed),
			dir); turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %s, %v (%s)", what, turnstone.KindOf(err), err, turnstone.HintOf(err))
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a folder is left", what)
		}
	}
	version, release := b.s.version, b.s.release
	b.s.version = "Firecracker v1.18.0"
	refused("another Firecracker", turnstone.KindUnavailable)
	b.s.version, b.s.release = version, release1161
	refused("one that does not pause", turnstone.KindUnavailable)
	b.s.release = release
	check(t, os.RemoveAll(b.s.home.Path("snapshots", b.s.identity(b.m).key())))
	refused("the template's snapshot is gone", turnstone.KindUnavailable)
}

// TestKeepTakesAJail checks that without a jail a kept machine is neither created nor restored,
// whatever it contains.
func TestKeepTakesAJail(t *testing.T) {
	s := &Substrate{}
	if err := s.Abilities().Keep; turnstone.KindOf(err) != turnstone.KindUnavailable ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	dir := filepath.Join(t.TempDir(), "vm")
	if err := s.Unpack(t.Context(), substrate.Machine{}, substrate.PackedDir(t.TempDir()),
		dir); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		err.Error() != s.Abilities().Keep.Error() {
		t.Errorf("%v", err)
	}
	s.wall.Wall = jailed
	if err := s.Abilities().Keep; err != nil {
		t.Error(err)
	}
}

// TestMovedTo checks that a kept machine resumes if all visible properties match, and that
// otherwise the difference is named, with both values.
func TestMovedTo(t *testing.T) {
	here, err := host.CPUModel()
	if err != nil {
		t.Fatal(err)
	}
	now := identity{Version: "1.0", HostCPU: "c", HostKernel: "6.1.0-25-amd64",
		Kernel: turnstone.DigestBytes([]byte("kernel")),
		Root:   turnstone.DigestBytes([]byte("root"))}
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
		"another program": {func(id *identity) { id.Version = "2.0\x1b" }, here,
			[]string{"2.0?, now 1.0"}},
		"another guest kernel": {func(id *identity) { id.Kernel = none }, here,
			[]string{"kernel", now.Kernel.Short(), none.Short()}},
		"another template": {func(id *identity) { id.Root = none }, here,
			[]string{"template", now.Root.Short(), none.Short()}},
		"another shape": {func(id *identity) { id.Shape.CPUs = 7 }, here,
			[]string{"7 CPUs"}},
		"another patch level": {func(id *identity) { id.HostKernel = "6.1.99" }, here, nil},
		"another host kernel": {func(id *identity) { id.HostKernel = "6.12.1" }, here,
			[]string{"host kernel", "6.12.1", "6.1.0-25"}},
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
