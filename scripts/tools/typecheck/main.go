// Command typecheck checks the types of packages and of all that they import, for another system, without
// compiling any of it: typecheck FOLDER GOOS/GOARCH PACKAGE…
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: typecheck FOLDER GOOS/GOARCH PACKAGE…")
		os.Exit(2)
	}
	n, err := check(os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %d packages\n", os.Args[2], n)
}

// check returns the number of checked packages.
func check(root, system string, patterns []string) (n int, err error) {
	root, err = filepath.Abs(root)
	if err != nil {
		return 0, err
	}
	goos, arch, _ := strings.Cut(system, "/")
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo,
		Dir: root, Env: append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0"),
		ParseFile: func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
			f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
			if f != nil && !strings.HasPrefix(name, root+string(filepath.Separator)) {
				withoutBodies(f)
			}
			return f, err
		},
	}, patterns...)
	if err != nil {
		return 0, err
	}
	packages.Visit(all, nil, func(p *packages.Package) {
		n++
		for _, e := range p.Errors {
			// A library without its bodies seems not to use what it imports.
			if err == nil && (e.Kind == packages.ListError || strings.HasPrefix(e.Pos, root+string(filepath.Separator))) {
				err = fmt.Errorf("%s: %s: %w", system, p.ID, e)
			}
		}
	})
	return n, err
}

// withoutBodies leaves out what other packages cannot see of a file.
func withoutBodies(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			fn.Body = nil
		}
	}
}
