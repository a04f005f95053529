package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestStrictRoom: what a deterministic machine copies into memory counts, before it is copied.
func TestStrictRoom(t *testing.T) {
	const memory, disk = 256 << 20, 64 << 20
	root := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(root, make([]byte, 32<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bound, script int64
		fits          bool
	}{
		"no bound":       {0, 1 << 20, true},
		"fits":           {memory + disk + 2<<20, 1 << 20, true},
		"a large script": {memory + disk + 2<<20, 3 << 20, false},
		"huge":           {memory + disk + 2<<20, 1 << 50, false},
		"no room at all": {memory, 1, false},
	} {
		m := substrate.Machine{Root: root, Kernel: empty, Initramfs: empty,
			Shape: turnstone.Shape{CPUs: 1, Memory: memory, Disk: disk},
			Determinism: &substrate.Determinism{Memory: turnstone.Bytes(c.bound),
				Script: []substrate.Call{{Method: "x", Size: c.script,
					Data: strings.NewReader(strings.Repeat("x", int(min(c.script, 4<<20))))}}}}
		home, err := statedir.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s := &Substrate{home: home}
		f, disks, err := s.strictFiles(t.Context(), m)
		f.close()
		if c.fits {
			if err != nil || len(disks) != 3 {
				t.Errorf("%s: %v, %d disks", name, err, len(disks))
			}
		} else if turnstone.KindOf(err) != turnstone.KindExhausted ||
			!strings.Contains(turnstone.HintOf(err), "disk:") {
			t.Errorf("%s: %v (%s)", name, err, turnstone.HintOf(err))
		}
	}
}
