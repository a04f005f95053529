package firecracker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// TestDifferences checks that a snapshot of a running machine contains the memory that it was
// loaded from, with Firecracker's writes at each snapshot so far, and nothing of another machine.
func TestDifferences(t *testing.T) {
	b := newBench(t, "")
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	base := b.s.home.Path("snapshots", b.s.identity(b.m).key(), ramFile)
	want, err := os.ReadFile(base)
	check(t, err)
	if !bytes.Equal(want[3<<20:3<<20+9], []byte("the guest")) {
		t.Fatal("the stand-in's memory is another")
	}
	check(t, os.RemoveAll(filepath.Dir(base))) // the machine continues without it
	dir := t.TempDir()
	take := func(vm substrate.Sandbox, name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		check(t, vm.(substrate.Snapshotter).Snapshot(within(t), path))
		return path
	}
	same := func(path string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(path, ramFile)); err != nil ||
			!bytes.Equal(got, want) {
			t.Errorf("%s: the memory is another: %v", path, err)
		}
	}
	clear(want[3<<20 : 3<<20+4096])
	for n := 1; n <= 3; n++ {
		copy(want[(1000+n)*4096:], fmt.Sprintf("difference %d", n))
		path := take(vm, fmt.Sprint(n))
		same(path)
		check(t, os.WriteFile(filepath.Join(path, scratchFile), nil, 0o600)) // the caller's file
		check(t, os.Chmod(filepath.Join(path, ramFile), 0o600))
		check(t, os.WriteFile(filepath.Join(path, ramFile), nil, 0o600))
	}
	clone, err := b.s.RestoreFrom(within(t), b.m, take(vm, "clone"))
	check(t, err)
	copy(want[1004*4096:], "difference 4")
	copy(want[1001*4096:], "difference 1") // the clone's own count begins anew
	same(take(clone, "of the clone"))
	speak(t, clone)
	speak(t, vm)
	b.nothingLeft(t)
}

// kinds returns the kinds of the snapshots that were requested from Firecracker.
func (b *bench) kinds(t *testing.T) (kinds []string) {
	t.Helper()
	for _, n := range notes(t, b.log) {
		if n.Path == "/snapshot/create" {
			_, kind, _ := strings.Cut(n.Body, `"snapshot_type":"`)
			kind, _, _ = strings.Cut(kind, `"`)
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// TestDifferenceNotTaken checks that all of the memory is written if it is uncertain which pages
// were written.
func TestDifferenceNotTaken(t *testing.T) {
	b := newBench(t, "")
	snapshot := func(vm substrate.Sandbox) error {
		return vm.(substrate.Snapshotter).Snapshot(within(t), filepath.Join(t.TempDir(), "vm"))
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := b.kinds(t); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		check(t, os.RemoveAll(b.log))
	}
	vm, err := b.s.Restore(within(t), b.m)
	check(t, err)
	expect("of the template", "Full")
	check(t, snapshot(vm))
	check(t, snapshot(vm))
	expect("twice", "Diff", "Diff")
	vm.(*machine).memory.holes = func() bool { return false }
	check(t, snapshot(vm))
	expect("a file system without holes", "Full")
	check(t, vm.Close())
	booted, err := b.s.Boot(within(t), b.m)
	check(t, err)
	check(t, snapshot(booted))
	expect("a machine that was booted", "Full")
	check(t, booted.Close())
	failing, err := b.substrate(t, "short-memory").Restore(within(t), b.m)
	check(t, err)
	for range 2 {
		if err := snapshot(failing); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("a difference of half of the memory: %v", err)
		}
	}
	expect("after one that failed", "Diff", "Full")
	check(t, failing.Close())
	b.nothingLeft(t)
}
