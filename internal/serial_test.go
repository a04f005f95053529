package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSerial checks that the packages which make test never runs with the race detector, and make race does
// (SERIAL in the Makefile), start no goroutine, nor do their tests: the detector has nothing to find there.
func TestSerial(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "\nSERIAL = $(addprefix ./,")
	list, _, closed := strings.Cut(list, ")")
	packages := strings.Fields(strings.ReplaceAll(list, "\\\n", " "))
	if !found || !closed || len(packages) == 0 {
		t.Fatalf("no list of packages: %q", list)
	}
	for _, p := range packages {
		files, err := filepath.Glob(filepath.Join("..", p, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no files: %v", p, err)
		}
		for _, name := range files {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if at := concurrent(n); at != token.NoPos {
					t.Errorf("%s: runs beside others: take %s out of SERIAL", set.Position(at), p)
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
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Go" || s.Sel.Name == "Parallel" || s.Sel.Name == "AfterFunc") {
			return n.Pos()
		}
	}
	return token.NoPos
}
