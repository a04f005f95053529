package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// small is a graph: top imports middle, which imports bottom; the tests of other import middle.
func small() graph {
	p := func(name string, imports, tests []string) *pkg {
		return &pkg{name: name, ImportPath: module + "/" + name, Imports: modular(imports), XTestImports: modular(tests),
			TestGoFiles: []string{"x_test.go"}}
	}
	return graph{
		"":                        {ImportPath: module, TestGoFiles: []string{"x_test.go"}},
		"bottom":                  p("bottom", nil, nil),
		"middle":                  p("middle", []string{"bottom"}, nil),
		"cmd/top":                 p("cmd/top", []string{"middle"}, nil),
		"other":                   p("other", nil, []string{"middle"}),
		"uses-other":              p("uses-other", []string{"other"}, nil),
		"alone":                   p("alone", nil, nil),
		"cmd/turn-agent":          p("cmd/turn-agent", []string{"bottom"}, nil),
		"internal/guest/agentbin": p("internal/guest/agentbin", nil, nil),
		"starts":                  p("starts", []string{"internal/guest/agentbin"}, nil),
		"internal/driver/gvisor":  p("internal/driver/gvisor", nil, nil),
	}
}

func TestReached(t *testing.T) {
	for changed, want := range map[string][]string{
		"cmd/top": {"cmd/top"},
		"middle":  {"cmd/top", "middle", "other"}, // what imports other does not see its tests
		"alone":   {"alone"},
		// the agent is embedded, which no import shows
		"cmd/turn-agent": {"cmd/turn-agent", "internal/guest/agentbin", "starts"},
		"gone":           nil,
	} {
		var got []string
		for name := range small().reached(change{code: []string{changed}}) {
			got = append(got, name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("a change of %s reaches %q, want %q", changed, got, want)
		}
	}
}

func TestOwners(t *testing.T) {
	g := small()
	for file, want := range map[string][]string{
		"middle/x.go":                {"middle"},
		"middle/testdata/deep/x.txt": {"middle"},
		"cmd/top/x_test.go":          {"cmd/top"},
		"errors.go":                  {""},
		"README.md":                  nil,
		"docs/a.md":                  nil,
		"Makefile":                   nil,
		"scripts/x/y.go":             nil,
		"shim/pod/x.go":              nil,
		"runsc/overlay/x.go":         {"internal/driver/gvisor"},
		"":                           nil,
	} {
		if got := g.owners([]string{file}); !slices.Equal(got, want) {
			t.Errorf("%q belongs to %q, want %q", file, got, want)
		}
	}
	c := g.split([]string{"middle/a.go", "middle/b_test.go", "bottom/testdata/x", "alone/x_test.go"})
	if !slices.Equal(c.code, []string{"middle"}) || !slices.Equal(c.tests, []string{"alone", "bottom", "middle"}) {
		t.Errorf("the change is %+v", c)
	}
	for file, want := range map[string]bool{"shim/pod/a.go": true, "internal/kube/e2e/a_test.go": true, "cmd/turn-operator/main.go": true,
		"internal/kubex/a.go": false, "docs/shim.md": false, "": false} {
		if g.split([]string{file}).clusters != want {
			t.Errorf("%q is part of a cluster: %v", file, !want)
		}
	}
	if got := small().reached(change{tests: []string{"a"}}); len(got) != 1 || !got["a"] {
		t.Errorf("a change of tests reaches %v", got)
	}
	if got := g.owners([]string{"go.mod"}); len(got) != len(g) {
		t.Errorf("go.mod reaches %q", got)
	}
}

// TestStarts: the packages of starts exist, so that a renamed one does not go unnoticed.
func TestStarts(t *testing.T) {
	g, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	for name, programs := range starts {
		for _, p := range append(programs, name) {
			if g[p] == nil {
				t.Errorf("there is no package %s", p)
			}
		}
	}
	for _, name := range longest {
		if g[name] == nil || !g[name].hasTests() {
			t.Errorf("%s has no tests", name)
		}
	}
	for _, u := range known() {
		if g[u.pkg] == nil {
			t.Errorf("there is no package %s", u.pkg)
		}
	}
	for _, tag := range tags {
		if _, _, err := g.tagged("../..", tag); err != nil {
			t.Error(err)
		}
	}
}

// files writes a package's files, and returns it.
func files(t *testing.T, all map[string]string) *pkg {
	t.Helper()
	p := &pkg{Dir: t.TempDir()}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte("package p\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if ok, _ := filepath.Match("*_test.go", name); ok {
			p.TestGoFiles = append(p.TestGoFiles, name)
		} else {
			p.GoFiles = append(p.GoFiles, name)
		}
	}
	return p
}

func TestConcurrency(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		own   bool
		only  bool
		tests []string
	}{
		"nothing": {files: map[string]string{"a.go": "func f() {}", "a_test.go": "func TestA() { f() }"}},
		"own":     {files: map[string]string{"a.go": "func f() { go f() }", "a_test.go": "func TestA() {}"}, own: true},
		"tests": {files: map[string]string{"a.go": "func f() {}",
			"a_test.go": "func TestA() { f() }\nfunc TestB() { helper() }\nfunc helper() { deeper() }\nfunc TestC(t *T) { t.Parallel() }",
			"b_test.go": "func deeper() { g.Go(f) }"}, tests: []string{"TestB", "TestC"}},
		"main":       {files: map[string]string{"a_test.go": "func TestMain(m *M) { go m.Run() }\nfunc TestA() {}"}, tests: []string{"TestA"}},
		"a variable": {files: map[string]string{"a_test.go": "var f = func() { go g() }\nfunc TestA() {}"}, tests: []string{"TestA"}},
		"only": {files: map[string]string{"a.go": "func f() { time.AfterFunc(1, f) }",
			"a_test.go": ownRace + "\n\nfunc TestA() {}\nfunc TestB() { go f() }"}, own: true, only: true, tests: []string{"TestB"}},
	} {
		got, err := concurrencyOf(files(t, c.files))
		if err != nil || got.own != c.own || got.only != c.only || !slices.Equal(got.tests, c.tests) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestGroups: packages are together if no test of one has the name of a test of another that is not meant.
func TestGroups(t *testing.T) {
	got := groups(map[string]concurrency{
		"a": {tests: []string{"TestX"}, all: []string{"TestX", "TestY"}},
		"b": {tests: []string{"TestZ"}, all: []string{"TestZ"}},
		"c": {tests: []string{"TestY"}, all: []string{"TestY"}}, // which a is not to run
		"d": {tests: []string{"TestX"}, all: []string{"TestX"}},
		"e": {tests: []string{"TestQ"}, all: []string{"TestQ", "TestX"}},
	})
	want := []group{{[]string{"a", "b", "d"}, []string{"TestX", "TestZ", "TestX"}}, {[]string{"c", "e"}, []string{"TestY", "TestQ"}}}
	if !slices.EqualFunc(got, want, func(a, b group) bool {
		return slices.Equal(a.names, b.names) && slices.Equal(a.tests, b.tests)
	}) {
		t.Errorf("the groups are %v, want %v", got, want)
	}
}

func TestTagged(t *testing.T) {
	p := files(t, map[string]string{"a_test.go": `// TestA is.
//testrun:user kvm
func TestA() {}
//testrun:qemu
func TestB() {}
func TestC() {}`})
	root := t.TempDir()
	dir := filepath.Join(root, "cmd/turn/testdata/machine")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"one": "# A script.\n# testrun: kvm user\nexec true\n", "two": "# A script.\nexec true\n# testrun: user\n"} {
		if err := os.WriteFile(filepath.Join(dir, name+".txtar"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests, scripts, err := graph{"p": p}.tagged(root, "user")
	if err != nil || !slices.Equal(tests["p"], []string{"TestA"}) || !slices.Equal(scripts, []string{"one"}) {
		t.Errorf("%q, %q, %v", tests, scripts, err)
	}
	bad := files(t, map[string]string{"a_test.go": "//testrun:windows\nfunc TestA() {}"})
	if _, _, err := (graph{"p": bad}).tagged(root, "user"); err == nil {
		t.Error("an unknown tag is taken")
	}
}
