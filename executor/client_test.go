package executor_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestMethodsOnAllSystems checks that the package's methods and functions have the same signatures
// on Linux and on other systems.
func TestMethodsOnAllSystems(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	linux, others := map[string]string{}, map[string]string{}
	for _, f := range files {
		switch {
		case strings.HasSuffix(f.Name(), "_linux.go"):
			signatures(t, f.Name(), linux)
		case strings.HasSuffix(f.Name(), "_other.go"):
			signatures(t, f.Name(), others)
		}
	}
	if len(linux) < 50 {
		t.Fatalf("only %d signatures", len(linux))
	}
	for _, name := range slices.Sorted(maps.Keys(linux)) {
		if linux[name] != others[name] {
			t.Errorf("%s: on Linux %s, elsewhere %q", name, linux[name], others[name])
		}
	}
	for name := range others {
		if linux[name] == "" {
			t.Errorf("%s is not on Linux", name)
		}
	}
}

// signatures adds the types of the exported functions and methods of a file to all.
func signatures(t *testing.T, file string, all map[string]string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || !fn.Name.IsExported() {
			continue
		}
		name := fn.Name.Name
		if fn.Recv != nil {
			name = types.ExprString(fn.Recv.List[0].Type) + "." + name
		}
		all[name] = flat(fn.Type.Params) + " " + flat(fn.Type.Results)
	}
}

// flat lists the types of parameters, without their names.
func flat(l *ast.FieldList) string {
	var all []string
	if l != nil {
		for _, f := range l.List {
			kind := f.Type
			if fn, ok := kind.(*ast.FuncType); ok {
				all = append(all, "func "+flat(fn.Params)+flat(fn.Results))
				continue
			}
			for range max(1, len(f.Names)) {
				all = append(all, types.ExprString(kind))
			}
		}
	}
	return "(" + strings.Join(all, ", ") + ")"
}
