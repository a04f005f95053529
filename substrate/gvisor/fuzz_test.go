package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// FuzzParsePack: what a manifest says may come from anywhere.
func FuzzParsePack(f *testing.F) {
	p := packManifest{Format: packFormat}
	for _, name := range checkpointFiles {
		p.Files = append(p.Files, packed{name, 1, turnstone.DigestBytes(nil)})
	}
	p.Sum = p.sum()
	b, _ := json.Marshal(p)
	f.Add(b)
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePack(b)
		if err != nil {
			return
		}
		for _, file := range p.Files {
			if file.Name != filepath.Base(file.Name) || strings.HasPrefix(file.Name, ".") || file.Size < 0 {
				t.Errorf("it may write %q", file.Name)
			}
		}
	})
}

// TestUnpackHostile: packed files that are not what the manifest says leave nothing.
func TestUnpackHostile(t *testing.T) {
	dir := t.TempDir()
	content := []byte(strings.Repeat("content ", 1000))
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "packed")
	check(t, os.WriteFile(src, content, 0o600))
	in, err := os.Open(src)
	check(t, err)
	defer func() { _ = in.Close() }()
	check(t, compress(t.Context(), in, dst))
	good := packed{"pages.img", int64(len(content)), turnstone.DigestBytes(content)}
	check(t, decompress(t.Context(), dst, filepath.Join(dir, "good"), good))
	short, other := good, good
	short.Size, other.Digest = 10, turnstone.DigestBytes(nil)
	for name, want := range map[string]packed{"more than it says": short, "another content": other} {
		if err := decompress(t.Context(), dst, filepath.Join(dir, "out "+name), want); err == nil {
			t.Errorf("%s: was taken", name)
		} else if fi, err := os.Stat(filepath.Join(dir, "out "+name)); err == nil && fi.Size() > want.Size+1 {
			t.Errorf("%s: %d bytes were written", name, fi.Size())
		}
	}
	check(t, os.WriteFile(dst, []byte("no frame at all"), 0o600))
	if err := decompress(t.Context(), dst, filepath.Join(dir, "garbage"), good); err == nil {
		t.Error("garbage was taken")
	}
}
