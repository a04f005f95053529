package firecracker

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/snapshots"
	"turnstone.dev/turnstone/substrate"
)

// edit changes a file as a user with the right to do so.
func edit(path string, change func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.WriteFile(path, change(b), 0o644)
}

func flip(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b }

// TestDamagedSnapshot checks that a damaged snapshot is taken again, never used.
func TestDamagedSnapshot(t *testing.T) {
	b := newBench(t, "")
	id := b.s.identity(b.m)
	dir := b.s.home.Path("snapshots", id.key())
	start := func() {
		t.Helper()
		vm, err := b.s.Restore(within(t), b.m)
		check(t, err)
		check(t, vm.Close())
	}
	start()
	for name, damage := range map[string]func() error{
		"a flipped bit of memory": func() error { return edit(filepath.Join(dir, ramFile), flip) },
		"a flipped bit of memory, times put back": func() error {
			path := filepath.Join(dir, ramFile)
			st, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(os.Chmod(path, 0o644), edit(path, flip),
				os.Chtimes(path, st.ModTime(), st.ModTime()))
		},
		"short memory": func() error {
			return edit(filepath.Join(dir, ramFile),
				func(b []byte) []byte { return b[:len(b)-1] })
		},
		"no memory":       func() error { return os.Remove(filepath.Join(dir, ramFile)) },
		"a flipped state": func() error { return edit(filepath.Join(dir, stateFile), flip) },
		"no state":        func() error { return os.Remove(filepath.Join(dir, stateFile)) },
		"a touched disk": func() error {
			return os.Chtimes(filepath.Join(dir, scratchFile),
				time.Now(), time.Now())
		},
		"no manifest": func() error { return os.Remove(filepath.Join(dir, manifestFile)) },
		"broken manifest": func() error {
			return edit(filepath.Join(dir, manifestFile),
				func(b []byte) []byte { return b[:len(b)/2] })
		},
		"a huge manifest": func() error {
			return os.Truncate(filepath.Join(dir, manifestFile),
				2*snapshots.MaxManifest)
		},
		"of another": func() error {
			return edit(filepath.Join(dir, manifestFile),
				func(b []byte) []byte {
					return bytes.Replace(b, []byte("v1.17.0"),
						[]byte("v1.16.0"), 1)
				})
		},
		"a folder instead": func() error {
			return errors.Join(os.Remove(filepath.Join(dir, ramFile)),
				os.Mkdir(filepath.Join(dir, ramFile), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, damage())
			if _, err := openSnapshot(t.Context(), dir, id); err == nil {
				t.Fatal("it passes as whole")
			} else if !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "longer") &&
				turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Errorf("got %v", err)
			}
			before := len(b.told)
			start()
			if len(b.told) == before {
				t.Error("it was not taken anew")
			}
			if _, err := openSnapshot(t.Context(), dir, id); err != nil {
				t.Errorf("the new one: %v", err)
			}
		})
	}
	b.nothingLeft(t)
}

// TestBadSnapshot checks that an incomplete snapshot of Firecracker is rejected.
func TestBadSnapshot(t *testing.T) {
	b := newBench(t, "")
	for fault, text := range map[string]string{"short-memory": "of the 16777216 bytes",
		"refuse:/snapshot/create": "to refuse", "refuse:/vm": "to refuse",
		"die:/snapshot/create": "SIGBUS", "odd:/snapshot/create": "500"} {
		t.Run(fault, func(t *testing.T) {
			s := b.substrate(t, fault)
			if vm, err := s.Restore(within(t), b.m); err == nil ||
				!strings.Contains(err.Error(), text) {
				t.Errorf("got %v", err)
				if err == nil {
					_ = vm.Close()
				}
			}
			entries, err := os.ReadDir(b.s.home.Path("snapshots"))
			check(t, err)
			for _, e := range entries {
				if !strings.HasSuffix(e.Name(), ".lock") {
					t.Errorf("%s is left", e.Name())
				}
			}
			b.nothingLeft(t)
		})
	}
}

// TestSupersededKernel checks that Turnstone's kernel replaces an older kernel of Turnstone, and
// that a user's kernel neither replaces a kernel nor is replaced: the user may alternate between
// both.
func TestSupersededKernel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		base, err := os.MkdirTemp(t.TempDir(), "")
		check(t, err)
		now, all := identity{}, map[identity]bool{}
		draw := func(name string) identity {
			return identity{Substrate: "firecracker", Shape: turnstone.DefaultShape(),
				Root: turnstone.Digest(rapid.SampledFrom([]string{"r", "s"}).Draw(rt,
					name+" root")),
				Init: turnstone.Digest(rapid.SampledFrom([]string{"new", "old"}).Draw(rt,
					name+" init")),
				Kernel: turnstone.Digest(rapid.SampledFrom([]string{"k", "l"}).Draw(rt,
					name+" kernel")), OwnKernel: rapid.Bool().Draw(rt, name+" own")}
		}
		now = draw("now")
		for range rapid.IntRange(0, 5).Draw(rt, "others") {
			all[draw("other")] = false
		}
		for id := range all {
			sameKernel := id.Kernel == now.Kernel
			all[id] = id == now || id.Root != now.Root || !sameKernel &&
				(id.OwnKernel || now.OwnKernel)
			man, err := json.Marshal(manifest{Identity: id})
			check(t, err)
			check(t, errors.Join(os.Mkdir(filepath.Join(base, id.key()), 0o700),
				os.WriteFile(filepath.Join(base, id.key(), manifestFile), man, 0o600)))
		}
		removeSuperseded(base, now)
		for id, stays := range all {
			if _, err := os.Stat(filepath.Join(base, id.key())); (err == nil) != stays {
				rt.Errorf("%+v: %v, and should stay: %v; now %+v", id, err, stays, now)
			}
		}
	})
}

func TestSuperseded(t *testing.T) {
	b := newBench(t, "")
	start := func(m substrate.Machine) string {
		t.Helper()
		vm, err := b.s.Restore(within(t), m)
		check(t, err)
		check(t, vm.Close())
		return b.s.home.Path("snapshots", b.s.identity(m).key())
	}
	old := start(b.m)
	other := b.m
	other.RootDigest = turnstone.DigestBytes([]byte("another template"))
	kept := start(other)
	foreign := b.s.home.Path("snapshots", strings.Repeat("f", 32))
	check(t, os.Mkdir(foreign, 0o700))
	q, err := json.Marshal(map[string]any{"identity": map[string]any{"qemu": "7.2",
		"root": b.m.RootDigest, "shape": b.m.Shape}})
	check(t, err)
	check(t, os.WriteFile(filepath.Join(foreign, manifestFile), q, 0o600))
	unfinished := b.s.home.Path("snapshots", snapshots.Virtual.New+strings.Repeat("e", 32)+"-1")
	check(t, os.Mkdir(unfinished, 0o700))
	next := b.m
	next.InitDigest = turnstone.DigestBytes([]byte("a new agent"))
	start(next)
	for path, want := range map[string]bool{old: false, kept: true, foreign: true,
		unfinished: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
}

// TestLiveSnapshot checks that a running machine can be saved, continues, and has clones.
func TestLiveSnapshot(t *testing.T) {
	b := newBench(t, "")
	m := b.m
	m.Layers = []string{b.slot(t, "one", 0o444)}
	vm, err := b.s.Restore(within(t), m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	disk, err := vm.(substrate.Disker).Disk()
	check(t, err)
	defer func() { _ = disk.Close() }()
	_, err = disk.WriteAt([]byte("written"), 4096)
	check(t, err)
	for _, paused := range []bool{false, true} {
		if paused {
			check(t, vm.(substrate.Pauser).Pause(t.Context()))
		}
		dir := filepath.Join(t.TempDir(), "vm")
		check(t, vm.(substrate.Snapshotter).Snapshot(within(t), dir))
		var info instanceInfo
		check(t, vm.(*machine).api.do(t.Context(), "GET", "/", nil, &info))
		if want := map[bool]string{false: stateRunning,
			true: statePaused}[paused]; info.State != want {
			t.Errorf("it is %s, and was %s", info.State, want)
		}
		check(t, os.RemoveAll(b.log))
		clone, err := b.s.RestoreFrom(within(t), b.m, dir)
		check(t, err)
		b.checkLayer(t)
		check(t, os.RemoveAll(dir)) // a clone does not need it
		buf := make([]byte, 7)
		if _, err := clone.(*machine).scratch.ReadAt(buf, 4096); err != nil ||
			string(buf) != "written" {
			t.Errorf("the clone's disk has %q, %v", buf, err)
		}
		again := filepath.Join(t.TempDir(), "again")
		check(t, clone.(substrate.Snapshotter).Snapshot(within(t), again)) // a clone of a clone
		speak(t, clone)
		third, err := b.s.RestoreFrom(within(t), b.m, again)
		check(t, err)
		speak(t, third)
		if paused {
			check(t, vm.(substrate.Pauser).Resume(within(t)))
		}
	}
	speak(t, vm)
	b.nothingLeft(t)
}

func (b *bench) checkLayer(t *testing.T) {
	t.Helper()
	for _, n := range notes(t, b.log) {
		if n.Drive == "layer0" && strings.HasPrefix(n.Head, "image one") {
			return
		}
	}
	t.Error("the clone has not got the layer")
}

func TestLiveSnapshotRefused(t *testing.T) {
	b := newBench(t, "")
	m := b.m
	m.Home = b.slot(t, "homedisk", 0o600)
	vm, err := b.s.Restore(within(t), m)
	check(t, err)
	dir := filepath.Join(t.TempDir(), "vm")
	if err := vm.(substrate.Snapshotter).Snapshot(within(t),
		dir); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("with a home: %v", err)
	}
	check(t, vm.Close())
	vm, err = b.s.Restore(within(t), b.m)
	check(t, err)
	check(t, vm.Close())
	if err := vm.(substrate.Snapshotter).Snapshot(within(t),
		dir); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("of a closed machine: %v", err)
	}
	for _, fault := range []string{"refuse:/snapshot/create", "short-memory"} {
		whole, err := b.s.Restore(within(t), b.m)
		check(t, err)
		check(t, whole.Close())
		vm, err := b.substrate(t, fault).Restore(within(t), b.m)
		check(t, err)
		parent := t.TempDir()
		if err := vm.(substrate.Snapshotter).Snapshot(within(t),
			filepath.Join(parent, "vm")); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%s: %v", fault, err)
		}
		if left, _ := os.ReadDir(parent); len(left) > 0 {
			t.Errorf("%s: left %v", fault, left)
		}
		speak(t, vm) // it continues
	}
	b.nothingLeft(t)
}

func TestDamagedLiveSnapshot(t *testing.T) {
	b := newBench(t, "")
	m := b.m
	layer := b.slot(t, "one", 0o444)
	m.Layers = []string{layer}
	vm, err := b.s.Restore(within(t), m)
	check(t, err)
	defer func() { _ = vm.Close() }()
	manifest := func(old, replacement string) func(string) error {
		return func(dir string) error {
			return edit(filepath.Join(dir, manifestFile),
				func(b []byte) []byte {
					return bytes.Replace(b, []byte(old), []byte(replacement),
						1)
				})
		}
	}
	for name, tc := range map[string]struct {
		damage func(dir string) error
		kind   turnstone.Kind
	}{
		"memory": {func(dir string) error {
			return edit(filepath.Join(dir, ramFile),
				flip)
		}, turnstone.KindIntegrity},
		"state": {func(dir string) error {
			return edit(filepath.Join(dir, stateFile),
				flip)
		}, turnstone.KindIntegrity},
		"disk": {func(dir string) error {
			return edit(filepath.Join(dir, scratchFile),
				flip)
		}, turnstone.KindIntegrity},
		"no manifest": {func(
			dir string) error {
			return os.Remove(filepath.Join(dir, manifestFile))
		}, turnstone.KindIntegrity},
		"nonsense":        {manifest("{", "["), turnstone.KindIntegrity},
		"nothing there":   {os.RemoveAll, turnstone.KindIntegrity},
		"format":          {manifest(`"format": 1`, `"format": 7`), turnstone.KindUnavailable},
		"another version": {manifest("v1.17.0", "v1.18.0"), turnstone.KindUnavailable},
		"another kernel":  {manifest(b.s.kernel, "5.10.0"), turnstone.KindUnavailable},
		"a layer":         {manifest(layer, layer+"x"), turnstone.KindIntegrity},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "vm")
			check(t, vm.(substrate.Snapshotter).Snapshot(within(t), dir))
			check(t, tc.damage(dir))
			clone, err := b.s.RestoreFrom(within(t), b.m, dir)
			if err == nil {
				_ = clone.Close()
			}
			if turnstone.KindOf(err) != tc.kind || turnstone.HintOf(err) == "" {
				t.Errorf("kind %s: %v (%s)", turnstone.KindOf(err), err, turnstone.HintOf(err))
			}
		})
	}
	other := b.m
	other.RootDigest = turnstone.DigestBytes([]byte("another"))
	dir := filepath.Join(t.TempDir(), "vm")
	check(t, vm.(substrate.Snapshotter).Snapshot(within(t), dir))
	if _, err := b.s.RestoreFrom(within(t), other,
		dir); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "template") {
		t.Errorf("on another template: %v", err)
	}
}
