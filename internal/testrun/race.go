package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// ownRace is a line of a test file of a package whose own code starts goroutines, but whose tests compute for long:
// under the race detector run only the tests that start goroutines themselves.
const ownRace = "//testrun:race own"

// raced returns the packages whose tests run under the race detector, and of the packages in which only some tests
// do, these. A package that starts no goroutine, nor do its tests, has nothing that the detector could see: what it
// imports has tests of its own.
func (g graph) raced(names []string) (whole []string, some map[string]concurrency, err error) {
	some = map[string]concurrency{}
	for _, name := range names {
		p := g[name]
		c, err := concurrencyOf(p)
		switch {
		case err != nil:
			return nil, nil, err
		case c.own && !c.only:
			whole = append(whole, name)
		case len(c.tests) > 0:
			some[name] = c
		}
	}
	return whole, some, nil
}

// A group is packages that one go test can run: its pattern selects in each of them the tests that are meant.
type group struct {
	names []string
	tests []string
}

// groups divides packages into few groups.
func groups(some map[string]concurrency) (all []group) {
	for _, name := range slices.Sorted(maps.Keys(some)) {
		c, placed := some[name], false
		for i := range all {
			fits := c.selects(all[i].tests)
			for _, other := range all[i].names {
				fits = fits && some[other].selects(c.tests)
			}
			if fits {
				all[i].names, all[i].tests, placed = append(all[i].names, name), append(all[i].tests, c.tests...), true
				break
			}
		}
		if !placed {
			all = append(all, group{[]string{name}, slices.Clone(c.tests)})
		}
	}
	return all
}

// selects reports whether names that are other packages' select no other tests than those that are meant here.
func (c concurrency) selects(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(c.all, n) && !slices.Contains(c.tests, n) })
}

// A concurrency says what of a package runs beside something else.
type concurrency struct {
	own   bool     // its own code starts goroutines
	only  bool     // its tests say ownRace
	tests []string // that start goroutines, or run in parallel; sorted
	all   []string // tests
}

func concurrencyOf(p *pkg) (concurrency, error) {
	var c concurrency
	calls := map[string][]string{} // of functions of the tests: which they mention
	starts := map[string]bool{}
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		f, err := parse(p.Dir, name)
		if err != nil {
			return c, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			c.own = c.own || concurrent(n)
			return !c.own
		})
	}
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		f, err := parse(p.Dir, name)
		if err != nil {
			return c, err
		}
		for _, group := range f.Comments {
			c.only = c.only || slices.ContainsFunc(group.List, func(l *ast.Comment) bool { return l.Text == ownRace })
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok { // a variable's function: which tests call it is not known
				ast.Inspect(d, func(n ast.Node) bool { starts["TestMain"] = starts["TestMain"] || concurrent(n); return true })
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				starts[fn.Name.Name] = starts[fn.Name.Name] || concurrent(n) // a test that starts nothing is there, too
				if id, ok := n.(*ast.Ident); ok {
					calls[fn.Name.Name] = append(calls[fn.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	spread(starts, calls)
	for name := range starts {
		if !strings.HasPrefix(name, "Test") || name == "TestMain" {
			continue
		}
		if c.all = append(c.all, name); starts[name] || starts["TestMain"] {
			c.tests = append(c.tests, name)
		}
	}
	slices.Sort(c.tests)
	return c, nil
}

func parse(dir, name string) (*ast.File, error) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("reading tests: %w", err)
	}
	return f, nil
}

// spread marks the functions that mention a marked one. A method counts by its name alone: too many are marked
// rather than too few.
func spread(marked map[string]bool, calls map[string][]string) {
	for changed := true; changed; {
		changed = false
		for _, name := range slices.Collect(maps.Keys(calls)) {
			if !marked[name] && slices.ContainsFunc(calls[name], func(to string) bool { return to != name && marked[to] }) {
				marked[name], changed = true, true
			}
		}
	}
}

// concurrent reports whether n starts a goroutine, or runs a test beside others: errgroup.Group and
// sync.WaitGroup have Go, testing.T has Parallel, time and context have AfterFunc.
func concurrent(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		s, ok := n.Fun.(*ast.SelectorExpr)
		return ok && (s.Sel.Name == "Go" || s.Sel.Name == "Parallel" || s.Sel.Name == "AfterFunc")
	}
	return false
}
