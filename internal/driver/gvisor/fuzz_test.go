package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/substrate"
)

// FuzzParsePack checks manifests, which are untrusted.
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
			if file.Name != filepath.Base(file.Name) || strings.HasPrefix(file.Name, ".") ||
				file.Size < 0 {
				t.Errorf("it may write %q", file.Name)
			}
		}
	})
}

// TestUnpackHostile checks that packed files that differ from the manifest leave nothing.
func TestUnpackHostile(t *testing.T) {
	dir := t.TempDir()
	content := []byte(strings.Repeat("content ", 1000))
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "pages.img"+suffix)
	check(t, os.WriteFile(src, content, 0o600))
	in, err := os.Open(src)
	check(t, err)
	defer func() { _ = in.Close() }()
	check(t, compress(t.Context(), in, dst))
	good := packed{"pages.img", int64(len(content)), turnstone.DigestBytes(content)}
	check(t, decompress(t.Context(), substrate.PackedDir(dir), filepath.Join(dir, "good"), good))
	short, other := good, good
	short.Size, other.Digest = 10, turnstone.DigestBytes(nil)
	for name, want := range map[string]packed{"more than it says": short,
		"another content": other} {
		if err := decompress(t.Context(), substrate.PackedDir(dir), filepath.Join(dir, "out "+name),
			want); err == nil {
			t.Errorf("%s: was taken", name)
		} else if fi, err := os.Stat(filepath.Join(dir, "out "+name)); err == nil &&
			fi.Size() > want.Size+1 {
			t.Errorf("%s: %d bytes were written", name, fi.Size())
		}
	}
	check(t, os.WriteFile(dst, []byte("no frame at all"), 0o600))
	if err := decompress(t.Context(), substrate.PackedDir(dir), filepath.Join(dir, "garbage"),
		good); err == nil {
		t.Error("garbage was taken")
	}
}

// TestMovedTo checks that a kept sandbox resumes if all visible properties match, and that
// otherwise the difference is named, with both values.
func TestMovedTo(t *testing.T) {
	here, err := host.CPUModel()
	check(t, err)
	less := &host.Model{Name: here.Name}
	now := identity{Runsc: turnstone.DigestBytes([]byte("runsc")), HostCPU: "c",
		Kernel: "6.1.0-25-amd64", Root: turnstone.DigestBytes([]byte("root")),
		Shape: turnstone.DefaultShape()}
	for name, c := range map[string]struct {
		change func(*identity)
		cpu    *host.Model
		says   []string
	}{
		"the same":            {func(*identity) {}, nil, nil},
		"another kernel":      {func(id *identity) { id.Kernel = "5.10.1" }, nil, nil},
		"another microcode":   {func(id *identity) { id.HostCPU = "d" }, here, nil},
		"fewer features then": {func(id *identity) { id.HostCPU = "d" }, less, nil},
		"another CPU": {func(id *identity) { id.HostCPU = "d" }, &host.Model{Name: "EPYC"},
			[]string{"CPU", "EPYC", here.Name}},
		"an older pack's CPU": {func(id *identity) { id.HostCPU = "d" }, nil,
			[]string{"CPU", here.Name}},
		"another runsc": {func(id *identity) { id.Runsc = turnstone.DigestBytes(nil) }, here,
			[]string{"runsc", now.Runsc.Short(), turnstone.DigestBytes(nil).Short()}},
		"another template": {func(id *identity) { id.Root = turnstone.DigestBytes(nil) }, here,
			[]string{"template", now.Root.Short(), turnstone.DigestBytes(nil).Short()}},
		"another shape": {func(id *identity) { id.Shape.CPUs = 7 }, here,
			[]string{"7 CPUs", "1 CPUs"}},
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
