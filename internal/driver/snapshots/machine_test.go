package snapshots

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/substrate"
)

type identity struct {
	Machine string `json:"machine"`
}

// TestFormat checks the format of snapshots on disk, which outlive the program that wrote them.
func TestFormat(t *testing.T) {
	st := filestamp.Stamp{Digest: "sha256:ab", Size: 1, Inode: 2, MtimeNs: 3, CtimeNs: 4}
	taken := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const stamped = `{"digest":"sha256:ab","size":1,"inode":2,"mtime_ns":3,"ctime_ns":4}`
	const common = `"identity":{"machine":"a"},"taken":"2026-01-02T03:04:05Z","state":"sha256:cd","ram":` + stamped + `,"scratch":` + stamped
	for want, value := range map[string]any{
		`{` + common + `}`: Manifest[identity]{identity{"a"}, taken, "sha256:cd", st, st},
		`{"format":1,` + common + `,"layers":[{"path":"/l","stamp":` + stamped +
			`}]}`: Live[identity]{1, identity{"a"}, taken, "sha256:cd", st, st,
			[]Layer{{"/l", st}}},
		`{"format":1,` + common + `}`: Live[identity]{1, identity{"a"}, taken, "sha256:cd", st, st,
			nil},
		`{"format":1,"identity":{"machine":"a"},"cpu":{"name":"A","features":["b"]},"taken":"2026-01-02T03:04:05Z","base":"sha256:01","snapshot":"sha256:02",` +
			`"state":"sha256:cd","ram":{"size":3,"runs":[[1,2]],"data":"sha256:ef"},"scratch":{"size":0,"runs":null,"data":""},"layers":["l"],"sum":"sha256:03"}`: Packed[identity]{1, identity{"a"},
			&host.Model{Name: "A", Features: []string{"b"}}, taken, "sha256:01", "sha256:02",
			"sha256:cd", difference{3, [][2]int64{{1, 2}}, "sha256:ef"}, difference{},
			[]string{"l"}, "sha256:03"},
		`{"format":1,"name":"sha256:02","ram":{"size":3,"runs":[[1,2]],"data":"sha256:ef"},"scratch":{"size":0,"runs":null,"data":""},"sum":"sha256:03"}`: packedBase{1, "sha256:02",
			difference{3, [][2]int64{{1, 2}}, "sha256:ef"}, difference{}, "sha256:03"},
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%s (%v), want\n%s", got, err, want)
		}
	}
	if got, want := Key(identity{"a"}),
		turnstone.DigestBytes([]byte(`{"machine":"a"}`)).Hex()[:32]; got != want {
		t.Errorf("key %s, want %s", got, want)
	}
}

func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{RAMFile: "memory", ScratchFile: "disk",
		StateFile: "state"} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// change edits the manifest in dir.
func change(old, replacement string) func(dir string) error {
	return func(dir string) error {
		path := filepath.Join(dir, ManifestFile)
		b, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(b), old) {
			err = errors.New("the manifest has no " + old)
		}
		return errors.Join(err, os.WriteFile(path,
			[]byte(strings.Replace(string(b), old, replacement, 1)), 0o600))
	}
}

func rewrite(name, text string) func(dir string) error {
	return func(dir string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte(text),
			0o600)
	}
}

func touch(name string) func(dir string) error {
	return func(dir string) error {
		return os.Chtimes(filepath.Join(dir, name), time.Unix(1, 0),
			time.Unix(1, 0))
	}
}

func TestOpen(t *testing.T) {
	id := identity{"a"}
	for name, c := range map[string]struct {
		damage func(dir string) error
		ok     bool
	}{
		"whole":          {func(string) error { return nil }, true},
		"touched memory": {touch(RAMFile), true},
		"another memory": {rewrite(RAMFile, "Memory"), false},
		"touched disk":   {touch(ScratchFile), false},
		"another state":  {rewrite(StateFile, "State"), false},
		"no state": {func(
			dir string) error {
			return os.Remove(filepath.Join(dir, StateFile))
		}, false},
		"huge state": {func(
			dir string) error {
			return os.Truncate(filepath.Join(dir, StateFile), MaxState+1)
		}, false},
		"nonsense":         {rewrite(ManifestFile, "{"), false},
		"another identity": {change(`"a"`, `"b"`), false},
	} {
		dir := folder(t)
		check(t, Manifest[identity]{Identity: id,
			State: turnstone.DigestBytes([]byte("state"))}.Seal(t.Context(), dir))
		check(t, c.damage(dir))
		state, err := Open(t.Context(), "test.snapshot", dir, id)
		if c.ok && (err != nil || string(state) != "state") || !c.ok &&
			turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %q, %v", name, state, err)
		}
	}
	if _, err := Open(t.Context(), "test.snapshot", t.TempDir(), id); !errors.Is(err,
		fs.ErrNotExist) {
		t.Errorf("no snapshot: %v", err)
	}
}

func TestOpenLive(t *testing.T) {
	differs := func(id identity) string {
		if id.Machine != "a" {
			return "machine"
		}
		return ""
	}
	layer := filepath.Join(t.TempDir(), "layer")
	check(t, os.WriteFile(layer, nil, 0o600))
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   turnstone.Kind
	}{
		"whole":          {func(string) error { return nil }, ""},
		"touched memory": {touch(RAMFile), turnstone.KindIntegrity},
		"touched disk":   {touch(ScratchFile), turnstone.KindIntegrity},
		"another state":  {rewrite(StateFile, "State"), turnstone.KindIntegrity},
		"no manifest": {func(
			dir string) error {
			return os.Remove(filepath.Join(dir, ManifestFile))
		}, turnstone.KindIntegrity},
		"nonsense":        {rewrite(ManifestFile, "{"), turnstone.KindIntegrity},
		"another format":  {change(`"format": 1`, `"format": 2`), turnstone.KindUnavailable},
		"another machine": {change(`"a"`, `"b"`), turnstone.KindUnavailable},
		"another layer":   {change(layer, layer+"x"), turnstone.KindIntegrity},
		"many layers": {change(`"layers": [`, `"layers": [`+strings.Repeat(`{"path":"x"},`,
			substrate.MaxLayers)), turnstone.KindIntegrity},
	} {
		dir := folder(t)
		man := Live[identity]{Identity: identity{"a"},
			State: turnstone.DigestBytes([]byte("state"))}
		check(t, man.Seal(dir, []string{layer}))
		check(t, c.damage(dir))
		got, state, err := OpenLive("test.restore", dir, differs)
		if c.want == "" {
			if err != nil || string(state) != "state" || len(got.Layers) != 1 ||
				got.Layers[0].Path != layer {
				t.Errorf("%s: %+v, %q, %v", name, got, state, err)
			}
		} else if turnstone.KindOf(err) != c.want || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", name, err, turnstone.HintOf(err))
		}
	}
	if _, err := Layers([]string{layer + "x"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a layer that is not there: %v", err)
	}
}

func TestSameLayers(t *testing.T) {
	for _, c := range []struct {
		names, paths []string
		same         bool
	}{
		{nil, nil, true},
		{[]string{"a", "b"}, []string{"/x/a", "/y/b"}, true},
		{[]string{"a", "b"}, []string{"/x/b", "/y/a"}, false},
		{[]string{"a"}, []string{"/x/a", "/y/b"}, false},
		{[]string{"a", "b"}, []string{"/x/a"}, false},
	} {
		if err := SameLayers(c.names, c.paths); (err == nil) != c.same {
			t.Errorf("%q, %q: %v", c.names, c.paths, err)
		}
	}
}
