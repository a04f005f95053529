package internal_test

import (
	"encoding/json"
	"errors"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// public are the packages that other modules may import.
var public = []string{
	"", "document", "executor", "sandboxes", "substrate", "substrate/substratetest", "wire",
}

// TestLeaks checks that the public packages mention no type below internal/: another module could
// get its values, and not name it. A type that leaks is searched as if it were public.
func TestLeaks(t *testing.T) {
	found := leakFinder{leaks: map[string]string{}, seen: map[*types.Named]bool{}}
	for _, p := range typed(t, public) {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				found.from = p.Path() + "." + name
				found.object(o)
			}
		}
	}
	for _, leak := range slices.Sorted(maps.Keys(found.leaks)) {
		t.Errorf("%s mentions %s", found.leaks[leak], leak)
	}
}

// typed returns the types of packages of this module, from the compiler's export data.
func typed(t *testing.T, names []string) (all []*types.Package) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, name := range names {
		args = append(args, "./"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files[p.ImportPath] = p.Export
	}
	in := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	})
	for _, name := range names {
		p, err := in.Import(strings.TrimSuffix(module+"/"+name, "/"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// A leakFinder collects the types below internal/ that an exported name leads to.
type leakFinder struct {
	from  string            // the exported name that is being searched
	leaks map[string]string // by type: the first exported name that mentions it
	seen  map[*types.Named]bool
}

// object searches what the declaration of o shows to another package.
func (f *leakFinder) object(o types.Object) {
	if n, ok := types.Unalias(o.Type()).(*types.Named); ok && is[*types.TypeName](o) {
		f.members(n.Origin())
	}
	f.mention(o.Type())
}

// members searches the exported fields and methods of a named type, promoted ones included.
func (f *leakFinder) members(n *types.Named) {
	if f.seen[n] {
		return
	}
	f.seen[n] = true
	f.mention(n.Underlying())
	for m := range types.NewMethodSet(types.NewPointer(n)).Methods() {
		if m.Obj().Exported() {
			f.within(m.Obj().Name(), m.Obj().Type())
		}
	}
}

// within searches the type of a member of what is being searched.
func (f *leakFinder) within(member string, t types.Type) {
	defer func(from string) { f.from = from }(f.from)
	f.from += "." + member
	f.mention(t)
}

// mention searches a type as it is written in a declaration.
func (f *leakFinder) mention(t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		f.named(t.Obj(), t.TypeArgs())
		f.mention(t.Rhs())
	case *types.Named:
		if f.named(t.Obj(), t.TypeArgs()) {
			f.members(t.Origin())
		}
	case *types.Struct:
		for v := range t.Fields() {
			if v.Exported() || v.Embedded() && is[*types.Struct](v.Type().Underlying()) {
				f.within(v.Name(), v.Type())
			}
		}
	case *types.Interface:
		for i := range t.NumMethods() {
			if m := t.Method(i); m.Exported() {
				f.within(m.Name(), m.Type())
			}
		}
	case *types.Signature:
		f.mention(t.Params())
		f.mention(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			f.mention(v.Type())
		}
	case *types.Map:
		f.mention(t.Key())
		f.mention(t.Elem())
	case interface{ Elem() types.Type }: // a pointer, slice, array or channel
		f.mention(t.Elem())
	}
}

// named notes the name of a type, and reports whether it leaks.
func (f *leakFinder) named(o *types.TypeName, args *types.TypeList) bool {
	for a := range args.Types() {
		f.mention(a)
	}
	if o.Pkg() == nil || !among(name(o.Pkg().Path()), "internal/...") {
		return false
	}
	if leak := name(o.Pkg().Path()) + "." + o.Name(); f.leaks[leak] == "" {
		f.leaks[leak] = f.from
	}
	return true
}

func is[T any](v any) bool { _, ok := v.(T); return ok }
