package substratetest

import (
	"os"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// testMove packs a running machine and resumes it in another state directory: without a snapshot of
// the template, and then with its own snapshot.
func testMove(t *testing.T, s substrate.Substrate, c Config) {
	k := keeper(t, s)
	if c.Elsewhere == nil {
		t.Fatal("the test of a substrate that keeps machines names no Elsewhere")
	}
	g := Start(t, s, c.Machine, &c.Network)
	g.counter(t)
	want(t, g.Client, "head -c 3000000 /dev/urandom > /dev/shm/random; "+
		"cp /dev/shm/random /workspace; sync", "")
	sum, _ := Shell(t, g.Client, "sha256sum < /dev/shm/random")
	at := g.count(t)
	packed := filepath.Join(t.TempDir(), "packed")
	p, err := k.Pack(t.Context(), c.Machine, g.Snapshot(t), packed)
	if err != nil {
		t.Fatal(err)
	}
	_ = g.Machine.Close()
	base := packBase(t, k, c.Machine, p, packed)
	other := c.Elsewhere(t)
	there := keeper(t, other)
	continues := func(what string) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "vm")
		if err := there.Unpack(t.Context(), c.Machine, substrate.PackedDir(packed),
			dir); err != nil {
			t.Fatalf("%s: %v (%s)", what, err, turnstone.HintOf(err))
		}
		f := Resume(t, other, c.Machine, dir)
		f.continues(t, at)
		want(t, f.Client, "sha256sum < /dev/shm/random; cmp /dev/shm/random /workspace/random", sum)
		_ = f.Machine.Close()
	}
	continues("without a snapshot")
	_ = Start(t, other, c.Machine, &c.Network).Machine.Close()
	continues("with a snapshot of its own")
	refusesBase(t, there, c.Machine, packed, base)
	if len(base) > 0 { // on its original host it needs no base
		if err := k.Unpack(t.Context(), c.Machine, substrate.PackedDir(packed),
			filepath.Join(t.TempDir(), "vm")); err != nil {
			t.Errorf("without a base, where it was kept: %v", err)
		}
	}
}

// packBase adds the base of p to the files in packed, and returns their names.
func packBase(t *testing.T, k substrate.Keeper, m substrate.Machine, p substrate.Packed,
	packed string) []string {
	t.Helper()
	b, ok := k.(substrate.BasePacker)
	if ok != (p.Base != "") {
		t.Fatalf("it is a base's packer: %t, of %q", ok, p.Base)
	}
	if !ok {
		return nil
	}
	if _, err := b.PackBase(t.Context(), m, turnstone.DigestBytes(nil),
		filepath.Join(t.TempDir(), "no")); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		turnstone.HintOf(err) == "" {
		t.Errorf("another base: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "base")
	names, err := b.PackBase(t.Context(), m, p.Base, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		st, err := os.Stat(filepath.Join(dir, name))
		if err == nil {
			t.Logf("%s: %s", name, turnstone.Bytes(st.Size()))
			err = os.Rename(filepath.Join(dir, name), filepath.Join(packed, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// refusesBase damages each file of a base, and then removes all of it.
func refusesBase(t *testing.T, k substrate.Keeper, m substrate.Machine, packed string,
	base []string) {
	t.Helper()
	refused := func(what string, kind turnstone.Kind) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "vm")
		if err := k.Unpack(t.Context(), m, substrate.PackedDir(packed),
			dir); turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", what, err, turnstone.KindOf(err))
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a folder is left", what)
		}
	}
	for _, name := range base {
		path := filepath.Join(packed, name)
		flip(t, path)
		refused(name+" changed", turnstone.KindIntegrity)
		flip(t, path)
	}
	for _, name := range base {
		if err := os.Remove(filepath.Join(packed, name)); err != nil {
			t.Fatal(err)
		}
	}
	if len(base) > 0 {
		refused("no base", turnstone.KindUnavailable)
	}
}
