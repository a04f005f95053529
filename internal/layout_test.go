package internal_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "turnstone.dev/turnstone"

// The bounds of a package: hand-written lines without tests, and imports of this module.
const (
	maxLines   = 4000
	maxImports = 15
)

// mustNotImport names packages, and what neither they nor what they import may import. A name that
// ends in /... stands for everything below, too. After "directly " only their own imports count.
var mustNotImport = map[string][]string{
	"internal/repo/...": {"internal/driver/...", "directly substrate/...", "wire/...",
		"sandboxes/...", "internal/sandbox/...", "executor/..."},
	"internal/plan":      {"internal/turn/...", "internal/repo/...", "executor/..."},
	"internal/host":      {"internal/turn/...", "internal/provision", "executor/..."},
	"internal/provision": {"internal/turn/...", "executor/..."},
	"internal/turn/...": {"internal/engine", "internal/templatebuild/...", "internal/repo/bundle",
		"internal/repo/branchmerge", "executor/..."},
	"internal/lang/...": {"document", "internal/template/...", "internal/repo/...", "executor/...",
		"wire/..."},
}

// A goPackage is what go list says of a package.
type goPackage struct {
	ImportPath, Dir string
	GoFiles         []string
	Imports, Deps   []string
}

// name is the path below the module; empty for the module's root.
func name(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// among reports whether pattern names the package called p.
func among(p, pattern string) bool {
	top, all := strings.CutSuffix(pattern, "/...")
	return p == top || all && strings.HasPrefix(p, top+"/")
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// lines counts what was written by hand.
func (p goPackage) lines(t *testing.T) (n int) {
	t.Helper()
	for _, file := range p.GoFiles {
		f, err := os.Open(filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		in, generated := 0, false
		for s := bufio.NewScanner(f); s.Scan(); in++ {
			generated = generated || in < 5 && strings.HasPrefix(s.Text(), "// Code generated ")
		}
		_ = f.Close()
		if !generated {
			n += in
		}
	}
	return n
}

func TestSizes(t *testing.T) {
	for _, p := range packages(t) {
		lines, imports := p.lines(t), 0
		for _, i := range p.Imports {
			if i == module || strings.HasPrefix(i, module+"/") {
				imports++
			}
		}
		if lines > maxLines || imports > maxImports {
			t.Errorf("%s has %d lines and %d imports of this module; the bounds are %d and %d",
				p.ImportPath, lines, imports, maxLines, maxImports)
		}
	}
}

func TestImports(t *testing.T) {
	all := packages(t)
	for who, bad := range mustNotImport {
		found := false
		for _, p := range all {
			if !among(name(p.ImportPath), who) {
				continue
			}
			found = true
			for _, b := range bad {
				b, direct := strings.CutPrefix(b, "directly ")
				deps := p.Deps
				if direct {
					deps = p.Imports
				}
				for _, d := range deps {
					if strings.HasPrefix(d, module+"/") && among(name(d), b) {
						t.Errorf("%s imports %s", p.ImportPath, d)
					}
				}
			}
		}
		if !found {
			t.Errorf("there is no package %s", who)
		}
	}
}
