package builtin

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// TestProvided compares the list of programs with the specs: each entry is named in a spec, and
// each package in a spec has an entry.
func TestProvided(t *testing.T) {
	var all, images []string
	files, err := fs.Glob(FS, "*/template.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		images = append(images, path.Dir(file))
		spec, err := fs.ReadFile(FS, file)
		var parsed struct {
			Packages, Npm, Pip []string
			Wheels             []struct{ File string }
		}
		if err := errors.Join(err, toml.Unmarshal(spec, &parsed)); err != nil {
			t.Fatal(err)
		}
		all = append(all, string(spec))
		var wheels []string
		for _, w := range parsed.Wheels {
			wheels = append(wheels, w.File)
		}
		for _, p := range slices.Concat(parsed.Packages, parsed.Npm, parsed.Pip, wheels) {
			if !slices.ContainsFunc(provided, func(e Provision) bool {
				return strings.HasPrefix(`"`+p+`"`, e.named)
			}) {
				t.Errorf("%s: package %s: say which programs it has", file, p)
			}
		}
	}
	for _, p := range provided {
		if !slices.ContainsFunc(all,
			func(spec string) bool { return names([]byte(spec), p.named) }) {
			t.Errorf("no spec names %s now", p.named)
		}
	}
	if order := slices.Sorted(slices.Values(builtInOrder)); !slices.Equal(order, images) {
		t.Errorf("images %v, ordered %v", images, builtInOrder)
	}
}

func TestWithProgram(t *testing.T) {
	for program, image := range map[string]string{"pip": "python", "python": "python",
		"npm": "nodejs", "claude": "claude-code", "curl": "base", "uv": "python",
		"git": "python", "cargo": "claude-code", "gcc": "claude-code",
		"bash": "", "no-such": "", "": ""} {
		if got := withProgram(program); got != image {
			t.Errorf("%s: %q, want %q", program, got, image)
		}
	}
	if !HasProgram("claude-code", "npm") || HasProgram("nodejs", "claude") ||
		!HasProgram("claude-code", "curl") || HasProgram("docker.io/x", "curl") {
		t.Error("an image has not what it lies on, or what lies on it")
	}
}
