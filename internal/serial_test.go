package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSerial checks what make test runs without the race detector, and make race with it: the packages of
// SERIAL in the Makefile start no goroutine, nor do their tests; of those of COMPUTES, each test that starts one runs with the detector, because GOROUTINES names it.
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
	for _, p := range strings.Fields(after("\nCOMPUTES = $(addprefix ./,", ")")) {
		inspect(t, p, "*_test.go", func(at token.Position, test string) {
			if strings.HasPrefix(test, "Test") && !named.MatchString(test) {
				t.Errorf("%s: %s runs beside others: add it to GOROUTINES", at, test)
			}
		})
	}
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
