package snapshots

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/substrate"
)

// A keptHome is a folder with a snapshot of a template, from which a machine was saved.
type keptHome struct {
	dir    string
	packer Packer[string]
}

const keptSize = 64 * pageSize

func newKeptHome(dir string) keptHome {
	m := substrate.Machine{Shape: turnstone.Shape{CPUs: 1, Memory: keptSize, Disk: keptSize}}
	return keptHome{dir, Packer[string]{Op: "test", Machine: m, Identity: "m", RAM: keptSize,
		Wrap: func(err error) error { return err },
		Base: func(string) string { return filepath.Join(dir, "snapshot") },
		Differs: func(id string, cpu *host.Model) string {
			if id != "m" || cpu == nil && strings.HasPrefix(id, "x") {
				return "machine"
			}
			return ""
		},
		Prepare: func(string) error { return nil }}}
}

func file(r testing.TB, path string, content []byte) {
	r.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content,
		0o600)); err != nil {
		r.Fatal(err)
	}
}

// snapshot takes the template's snapshot.
func (h keptHome) snapshot(t testing.TB, ram, scratch []byte) {
	t.Helper()
	dir := filepath.Join(h.dir, "snapshot")
	_ = os.RemoveAll(dir)
	file(t, filepath.Join(dir, RAMFile), ram)
	file(t, filepath.Join(dir, ScratchFile), scratch)
	file(t, filepath.Join(dir, StateFile), []byte("state"))
	if err := (Manifest[string]{Identity: "m", Taken: time.Now(),
		State: turnstone.DigestBytes([]byte("state"))}).Seal(context.Background(),
		dir); err != nil {
		t.Fatal(err)
	}
}

// keep saves a machine and packs it, with its base, into the folder that it returns.
func (h keptHome) keep(t testing.TB, ram, scratch []byte) string {
	t.Helper()
	live, packed := filepath.Join(h.dir, "live"), filepath.Join(h.dir, "packed")
	_, _ = os.RemoveAll(live), os.RemoveAll(packed)
	file(t, filepath.Join(live, RAMFile), ram)
	file(t, filepath.Join(live, ScratchFile), scratch)
	file(t, filepath.Join(live, StateFile), []byte("devices"))
	if err := (Live[string]{Identity: "m", State: turnstone.DigestBytes([]byte("devices"))}).Seal(
		live, nil); err != nil {
		t.Fatal(err)
	}
	p, err := h.packer.Pack(t.Context(), live, packed)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(h.dir, "base")
	names, err := h.packer.PackBase(t.Context(), p.Base, base)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(base, name), filepath.Join(packed, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(base); err != nil {
		t.Error(err)
	}
	return packed
}

// memory draws the content of a memory or a disk: pages of which many are zeros.
func memory(r *rapid.T, name string) []byte {
	b := make([]byte, keptSize)
	for range rapid.IntRange(0, 8).Draw(r, name) {
		at, n := rapid.IntRange(0, keptSize-1).Draw(r, "at"), rapid.IntRange(1, 3*pageSize).Draw(r,
			"length")
		copy(b[at:], bytes.Repeat([]byte{rapid.Byte().Draw(r, "byte")}, n))
	}
	return b
}

// TestMoves checks that a machine is restored with its own base, without a local snapshot, and with
// a different local snapshot.
func TestMoves(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		here, there := newKeptHome(t.TempDir()), newKeptHome(t.TempDir())
		here.snapshot(t, memory(r, "base's memory"), memory(r, "base's disk"))
		ram, scratch := memory(r, "memory"), memory(r, "disk")
		packed := here.keep(t, ram, scratch)
		check := func(what string, h keptHome) {
			dir := filepath.Join(h.dir, "vm")
			if err := h.packer.Unpack(t.Context(), substrate.PackedDir(packed), dir); err != nil {
				r.Fatalf("%s: %v", what, err)
			}
			gotRAM, _ := os.ReadFile(filepath.Join(dir, RAMFile))
			gotScratch, _ := os.ReadFile(filepath.Join(dir, ScratchFile))
			if !bytes.Equal(gotRAM, ram) || !bytes.Equal(gotScratch, scratch) {
				r.Fatalf("%s: it is another machine", what)
			}
			if _, state, err := OpenLive("test", dir,
				func(string) string { return "" }); err != nil || string(state) != "devices" {
				r.Fatalf("%s: %q, %v", what, state, err)
			}
			_ = os.RemoveAll(dir)
		}
		check("where it was kept", here)
		check("where nothing is", there)
		there.snapshot(t, memory(r, "other memory"), memory(r, "other disk"))
		check("where another snapshot is", there)
		_ = os.RemoveAll(filepath.Join(here.dir, "snapshot"))
		check("where the snapshot was deleted", here)
		for _, name := range []string{baseManifest, baseRAMData, baseScratchData} {
			_ = os.Remove(filepath.Join(packed, name))
		}
		if err := there.packer.Unpack(t.Context(), substrate.PackedDir(packed),
			filepath.Join(there.dir, "vm")); turnstone.KindOf(err) != turnstone.KindUnavailable {
			r.Fatalf("without a base: %v", err)
		}
	})
}

// TestHostileBase checks that a forged base, whose manifest has a valid digest, is rejected without
// leftovers.
func TestHostileBase(t *testing.T) {
	here := newKeptHome(t.TempDir())
	page := bytes.Repeat([]byte{7}, pageSize)
	full := bytes.Repeat(page, keptSize/pageSize)
	here.snapshot(t, full, full)
	packed := here.keep(t, full, full)
	there := newKeptHome(t.TempDir())
	b, err := os.ReadFile(filepath.Join(packed, baseManifest))
	if err != nil {
		t.Fatal(err)
	}
	good, err := parseBase(b)
	if err != nil {
		t.Fatal(err)
	}
	for what, lie := range map[string]func(*packedBase){
		"another machine's": func(p *packedBase) { p.Name = turnstone.DigestBytes(nil) },
		"another format":    func(p *packedBase) { p.Format++ },
		"its digest":        func(p *packedBase) { p.RAM.Data = turnstone.DigestBytes(nil) },
		"the disk's digest": func(
			p *packedBase) {
			p.Scratch.Data = turnstone.DigestBytes(nil)
		},
		"more memory": func(p *packedBase) { p.RAM.Size++ },
		"a huge memory": func(
			p *packedBase) {
			p.RAM.Size = 1 << 62
			p.RAM.Runs = [][2]int64{{0, 1 << 61}}
		},
		"no memory":     func(p *packedBase) { p.RAM = difference{} },
		"a larger disk": func(p *packedBase) { p.Scratch.Size *= 2 },
		"behind its end": func(
			p *packedBase) {
			p.RAM.Runs = [][2]int64{{keptSize, pageSize}}
		},
		"before its beginning": func(
			p *packedBase) {
			p.RAM.Runs = [][2]int64{{-pageSize, pageSize}}
		},
		"an overflow": func(
			p *packedBase) {
			p.RAM.Runs = [][2]int64{{1 << 62, 1 << 62}}
		},
		"the same twice": func(p *packedBase) {
			p.RAM.Runs = [][2]int64{{0, pageSize},
				{0, pageSize}}
		},
		"more than there is": func(
			p *packedBase) {
			p.Scratch.Runs = [][2]int64{{0, keptSize}}
		},
		"less than there is":       func(p *packedBase) { p.RAM.Runs = [][2]int64{{0, pageSize}} },
		"nothing of what there is": func(p *packedBase) { p.RAM.Runs = nil },
	} {
		p := good
		p.RAM.Runs, p.Scratch.Runs = slices.Clone(p.RAM.Runs), slices.Clone(p.Scratch.Runs)
		lie(&p)
		if what == "more than there is" {
			file(t, filepath.Join(packed, baseScratchData), page)
		}
		p.Sum = p.sum()
		b, _ := json.Marshal(p)
		file(t, filepath.Join(packed, baseManifest), b)
		dir := filepath.Join(there.dir, "vm")
		if err := there.packer.Unpack(t.Context(), substrate.PackedDir(packed),
			dir); turnstone.KindOf(err) != turnstone.KindIntegrity || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a folder is left", what)
		}
		file(t, filepath.Join(packed, baseScratchData), full)
	}
	file(t, filepath.Join(packed, baseManifest), bytes.Repeat([]byte(" "), maxPack+1))
	if err := there.packer.Unpack(t.Context(), substrate.PackedDir(packed),
		filepath.Join(there.dir, "vm")); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("a manifest that is too large: %v", err)
	}
	file(t, filepath.Join(packed, baseManifest), b)
	if err := there.packer.Unpack(t.Context(), substrate.PackedDir(packed),
		filepath.Join(there.dir, "vm")); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

// FuzzBase checks that any manifest is rejected, or has runs that are in order and within its
// files.
func FuzzBase(f *testing.F) {
	f.Add([]byte(`{"format":1,"ram":{"size":8192,"runs":[[0,4096]]}}`), true)
	f.Add([]byte(`{"format":1,"ram":{"size":8192,"runs":[[4096,9223372036854775807]]}}`), true)
	f.Add([]byte(`{"format":1,"name":"sha256:x","scratch":{"size":1,"runs":[[0,1],[0,1]]}}`), false)
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		if sign { // a forged manifest has a valid digest
			var p packedBase
			if json.Unmarshal(b, &p) != nil {
				return
			}
			p.Sum = p.sum()
			b, _ = json.Marshal(p)
		}
		p, err := parseBase(b)
		if err != nil {
			return
		}
		for _, d := range []difference{p.RAM, p.Scratch} {
			at, sum := int64(0), int64(0)
			for _, r := range d.Runs {
				if r[0] < at || r[1] <= 0 || r[0]+r[1] > d.Size || r[0]+r[1] < 0 {
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
