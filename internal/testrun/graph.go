package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A pkg is what go list says of a package of the module.
type pkg struct {
	ImportPath, Dir                    string
	GoFiles, CgoFiles                  []string
	TestGoFiles, XTestGoFiles          []string
	Imports, TestImports, XTestImports []string
	name                               string // below the module's root; "" is the root
}

func (p *pkg) hasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// A graph is the packages of the module, by their names below its root.
type graph map[string]*pkg

// load asks go for the packages of the module at root.
func load(ctx context.Context, goTool, root string) (graph, error) {
	cmd := exec.CommandContext(ctx, goTool, "list", "-json=ImportPath,Dir,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,"+
		"Imports,TestImports,XTestImports", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	g := graph{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		p.name = below(p.ImportPath)
		g[p.name] = &p
	}
}

// below returns the name of a package below the module's root, "" for the root.
func below(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// starts are the programs that a package's tests build or run, which no import shows. Their packages count as
// imported by the tests, and what the programs embed as imported by them.
var starts = map[string][]string{
	"internal/guest/agentbin": {"cmd/turn-agent"}, // embedded
	"cmd/turn":                {"cmd/turn-server"},
	"client":                  {"cmd/turn", "cmd/turn-server"},
	"examples":                {"cmd/turn"},
	"packaging/image":         {"cmd/turn", "cmd/turn-server", "cmd/turn-operator"},
	"internal/engine/cuttest": {"internal/engine/cuttest/internal/perform"},
	"internal/bench":          {"cmd/turn", "internal/driver/gvisor", "internal/driver/qemu", "internal/server/node/warm"},
	"internal/bench/corpus":   {"cmd/turn"},
	"internal/kube/bench":     {"cmd/turn", "cmd/turn-server", "cmd/turn-operator"},
	"internal/kube/control":   {"cmd/turn", "cmd/turn-server"},
	"internal/kube/turns":     {"cmd/turn-server"},
	"internal/kube/agents":    {"cmd/turn-server"},
}

// A change has the packages that it changes.
type change struct {
	code  []string
	tests []string // whose code stays: nothing that imports them is another
	// clusters says that files of the operator or of the shim changed.
	clusters bool
}

func (c change) all() []string {
	all := append(slices.Clone(c.code), c.tests...)
	slices.Sort(all)
	return slices.Compact(all)
}

// reached returns the packages whose tests depend on a change: the changed ones, and those that import one whose code
// is changed, also through others.
func (g graph) reached(c change) map[string]bool {
	users := map[string][]string{} // of a package's own code
	testers := map[string][]string{}
	for name, p := range g {
		for _, i := range slices.Concat(p.Imports, modular(starts[name])) {
			users[below(i)] = append(users[below(i)], name)
		}
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			testers[below(i)] = append(testers[below(i)], name)
		}
	}
	in := map[string]bool{} // whose own code depends on a change
	for queue := slices.Clone(c.code); len(queue) > 0; {
		name := queue[0]
		queue = queue[1:]
		if in[name] || g[name] == nil {
			continue
		}
		in[name] = true
		queue = append(queue, users[name]...)
	}
	all := maps.Clone(in)
	for name := range in {
		for _, t := range testers[name] {
			all[t] = true
		}
	}
	for _, name := range c.tests {
		all[name] = true
	}
	return all
}

func modular(names []string) (paths []string) {
	for _, n := range names {
		paths = append(paths, module+"/"+n)
	}
	return paths
}

// everything tells that a change reaches every package.
var everything = []string{"go.mod", "go.sum"}

// changed returns the packages with files that differ from the commit base, or all of them if what all are
// built with differs. Files outside of packages, such as documentation, are no package's.
func (g graph) changed(ctx context.Context, root, base string) (c change, err error) {
	var names []string
	for _, args := range [][]string{{"diff", "--name-only", "--no-renames", base},
		{"ls-files", "--others", "--exclude-standard"}} {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir, cmd.Stderr = root, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return c, fmt.Errorf("git %s: %w", args[0], err)
		}
		names = append(names, strings.Split(strings.TrimSpace(string(out)), "\n")...)
	}
	return g.split(names), nil
}

// split returns what a change of files changes.
func (g graph) split(files []string) change {
	test := func(file string) bool {
		return strings.HasSuffix(file, "_test.go") || strings.Contains("/"+file, "/testdata/")
	}
	return change{clusters: slices.ContainsFunc(files, ofCluster),
		code:  g.owners(slices.DeleteFunc(slices.Clone(files), test)),
		tests: g.owners(slices.DeleteFunc(slices.Clone(files), func(f string) bool { return !test(f) }))}
}

// ofCluster reports whether a file is part of what a cluster runs: the operator with its tests, or the shim.
func ofCluster(file string) bool {
	return slices.ContainsFunc([]string{"internal/kube/", "cmd/turn-operator/", "shim/"}, func(folder string) bool {
		return strings.HasPrefix(file, folder)
	})
}

func (g graph) owners(files []string) []string {
	found := map[string]bool{}
	for _, file := range files {
		if slices.Contains(everything, file) {
			return slices.Collect(maps.Keys(g))
		}
		switch dir, _, _ := strings.Cut(file, "/"); {
		case file == "" || dir == "docs" || dir == "scripts" || dir == "findings":
			continue
		case dir == "runsc": // the program that the driver runs
			found["internal/driver/gvisor"] = true
			continue
		case dir == "packaging" && g["packaging/image"] != nil: // its tests read the manifests
			found["packaging/image"] = true
			continue
		case dir == "shim":
			continue // a module of its own
		}
		for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
			if name := strings.TrimPrefix(dir, "."); g[name] != nil {
				if name != "" || !strings.Contains(file, "/") && strings.HasSuffix(file, ".go") {
					found[name] = true
				}
				break
			}
			if dir == "." {
				break
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
