package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSerial checks what make test-again runs without the race detector, and make race with it: the packages
// of SERIAL in the Makefile start no goroutine, nor do their tests; of those of COMPUTES, each test that starts one
// runs with the detector, because GOROUTINES names it, unless it is a sweep. Each test with the name of a sweep
// is in a package whose sweeps run.
func TestSerial(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	after := func(what, end string) string {
		_, rest, found := strings.Cut(string(text), what)
		rest, _, closed := strings.Cut(rest, end)
		if !found || !closed || rest == "" {
			t.Fatalf("the Makefile has no %q", what)
		}
		return strings.ReplaceAll(rest, "\\\n", " ")
	}
	for _, p := range strings.Fields(after("\nSERIAL = $(addprefix ./,", ")")) {
		inspect(t, p, "*.go", func(at token.Position, _ string) {
			t.Errorf("%s: runs beside others: take %s out of SERIAL", at, p)
		})
	}
	named := regexp.MustCompile(strings.ReplaceAll(after("\nGOROUTINES = ", "\n"), "$$", "$"))
	sweep := regexp.MustCompile(strings.ReplaceAll(after("\nSWEEPS = ", "\n"), "$$", "$"))
	computes := strings.Fields(after("\nCOMPUTES = $(addprefix ./,", ")"))
	for _, p := range computes {
		inspect(t, p, "*_test.go", func(at token.Position, test string) {
			if strings.HasPrefix(test, "Test") && !named.MatchString(test) && !sweep.MatchString(test) {
				t.Errorf("%s: %s runs beside others: add it to GOROUTINES", at, test)
			}
		})
	}
	swept := computes
	for _, p := range strings.Fields(after("\nSWEPT = $(addprefix ./internal/,", ")")) {
		swept = append(swept, "internal/"+p)
	}
	for _, test := range goTests(t) {
		if sweep.MatchString(test.name) && !slices.Contains(swept, test.dir) {
			t.Errorf("%s: %s has the name of a sweep, so make test-again and make race skip it: rename it, or add the package to SWEPT",
				test.dir, test.name)
		}
	}
}

// goTests returns the names of all tests of the module, with their folders.
func goTests(t *testing.T) (tests []struct{ dir, name string }) {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "..":
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir // another module's, or the build's
			}
			return nil
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range function.FindAllSubmatch(text, -1) {
			dir, _ := filepath.Rel("..", filepath.Dir(path))
			tests = append(tests, struct{ dir, name string }{dir, string(found[1])})
		}
		return err
	})
	if err != nil || len(tests) < 1000 {
		t.Fatalf("%d tests, %v", len(tests), err)
	}
	return tests
}

// inspect tells of each place in the files of a package that starts a goroutine or runs a test beside
// others, and in which function it is.
func inspect(t *testing.T, p, files string, tell func(at token.Position, function string)) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", p, files))
	if err != nil || len(names) == 0 {
		t.Errorf("%s has no files: %v", p, err)
	}
	for _, name := range names {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			in := ""
			if f, ok := d.(*ast.FuncDecl); ok {
				in = f.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if at := concurrent(n); at != token.NoPos {
					tell(set.Position(at), in)
				}
				return true
			})
		}
	}
}

// concurrent returns the place of what starts a goroutine, or runs a test beside others.
func concurrent(n ast.Node) token.Pos {
	switch n := n.(type) {
	case *ast.GoStmt:
		return n.Pos()
	case *ast.CallExpr: // errgroup.Group and sync.WaitGroup have Go, testing.T has Parallel
		s, ok := n.Fun.(*ast.SelectorExpr)
		if ok && (s.Sel.Name == "Go" || s.Sel.Name == "Parallel" || s.Sel.Name == "AfterFunc") {
			return n.Pos()
		}
	}
	return token.NoPos
}
