package internal_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestWaits checks that no test minds a busy machine: it waits for what is meant, and a bound on time is minutes.
// A sleep below a minute polls in a loop, and no deadline is shorter. A place that has to be otherwise says why, on
// its line or the one above: "//wait: REASON". Below testing/synctest the time is not the machine's.
func TestWaits(t *testing.T) {
	for _, dir := range testDirs(t) {
		for _, w := range waitsOf(t, dir) {
			if w.reason == "" {
				t.Errorf("%s: %s is shorter than a minute: wait for what is meant, or say why not with //wait:", w.at, w.what)
			}
		}
	}
}

// TestWaitsAreFound gives the lint a file with each kind of wait.
func TestWaitsAreFound(t *testing.T) {
	const source = `package x

const short = 3 * time.Second

func Test(t *testing.T) {
	time.Sleep(time.Second)
	time.Sleep(short) //wait: the product's own clock
	time.Sleep(2 * time.Minute)
	for { time.Sleep(20 * time.Millisecond) }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	//wait: it is to end early
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	c.SetReadDeadline(time.Now().Add(short))
	select { case <-time.After(5 * time.Second): case <-c: }
	synctest.Test(t, func(t *testing.T) { time.Sleep(time.Second) })
	until := time.Now().Add(10 * time.Second)
	time.AfterFunc(100*time.Millisecond, f)
	go func() { time.Sleep(time.Second) }()
}
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x_test.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range waitsOf(t, dir) {
		if w.reason == "" {
			got = append(got, fmt.Sprint(w.at.Line, " ", w.what))
		}
	}
	want := []string{"6 time.Sleep(1s)", "10 context.WithTimeout(20s)", "13 Add(3s)", "14 time.After(5s)", "16 Add(10s)",
		"17 time.AfterFunc(100ms)", "18 time.Sleep(1s)"}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// testDirs returns the folders of the module that have tests, or packages that only tests use.
func testDirs(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "findings") {
			return filepath.SkipDir
		}
		dirs = append(dirs, path)
		return nil
	})
	if err != nil || len(dirs) < 200 {
		t.Fatalf("%d folders, %v", len(dirs), err)
	}
	return dirs
}

// A wait is a place that waits for less than a minute, and the reason that its comment gives.
type wait struct {
	at           token.Position
	what, reason string
}

// waitsOf returns the waits of a folder's tests. In a folder whose name ends in "test" every file is a test's.
func waitsOf(t *testing.T, dir string) (all []wait) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	set, files := token.NewFileSet(), map[string]*ast.File{}
	constants := map[string]ast.Expr{}
	for _, name := range names {
		f, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(dir, "test") {
			files[name] = f
		}
		constantsOf(f, constants)
	}
	for _, name := range names {
		if f := files[name]; f != nil {
			all = append(all, waitsIn(set, f, constants)...)
		}
	}
	return all
}

// constantsOf notes the expressions of a file's constants and variables.
func constantsOf(f *ast.File, into map[string]ast.Expr) {
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
			for i, name := range v.Names {
				into[name.Name] = v.Values[i]
			}
		}
		return true
	})
}

func waitsIn(set *token.FileSet, f *ast.File, constants map[string]ast.Expr) (all []wait) {
	reasons := map[int]string{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if why, ok := strings.CutPrefix(c.Text, "//wait:"); ok {
				at := set.Position(c.Pos()).Line
				reasons[at], reasons[at+1] = strings.TrimSpace(why), strings.TrimSpace(why)
			}
		}
	}
	var stack []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		if c, ok := n.(*ast.CallExpr); ok {
			if what := waitOf(c, constants, stack); what != "" {
				at := set.Position(c.Pos())
				all = append(all, wait{at, what, reasons[at.Line]})
			}
		}
		stack = append(stack, n)
		return true
	})
	return all
}

// waitOf returns what a call waits, if that is less than a minute.
func waitOf(c *ast.CallExpr, constants map[string]ast.Expr, stack []ast.Node) string {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || len(c.Args) == 0 {
		return ""
	}
	from := ""
	if x, ok := s.X.(*ast.Ident); ok {
		from = x.Name
	}
	arg, name := c.Args[0], s.Sel.Name
	switch {
	case from == "time" && name == "Sleep":
		if within[*ast.ForStmt](stack) || within[*ast.RangeStmt](stack) {
			return "" // polls
		}
	case from == "time" && (name == "After" || name == "AfterFunc" || name == "NewTimer" || name == "Tick"):
	case from == "context" && (name == "WithTimeout" || name == "WithTimeoutCause"):
		arg = c.Args[1]
	case name == "Add" && isNow(s.X):
		name = "Add"
	default:
		return ""
	}
	d, ok := duration(arg, constants, 0)
	if !ok || d >= time.Minute || d <= 0 || bubbled(stack) {
		return ""
	}
	if from != "" {
		name = from + "." + name
	}
	return fmt.Sprintf("%s(%s)", name, d)
}

// isNow reports whether x is time.Now().
func isNow(x ast.Expr) bool {
	c, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := c.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Now"
}

// within reports whether a loop of a kind is around a place, in the same function.
func within[T ast.Node](stack []ast.Node) bool {
	for _, n := range slices.Backward(stack) {
		if _, ok := n.(T); ok {
			return true
		}
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}
	}
	return false
}

// bubbled reports whether a place is in a function that testing/synctest calls.
func bubbled(stack []ast.Node) bool {
	return slices.ContainsFunc(stack, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		s, ok := c.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := s.X.(*ast.Ident)
		return ok && x.Name == "synctest"
	})
}

// duration evaluates products and sums of durations.
func duration(e ast.Expr, constants map[string]ast.Expr, deep int) (time.Duration, bool) {
	if deep > 8 {
		return 0, false
	}
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 0, 64)
		return time.Duration(n), err == nil
	case *ast.ParenExpr:
		return duration(e.X, constants, deep+1)
	case *ast.Ident:
		if v := constants[e.Name]; v != nil {
			return duration(v, constants, deep+1)
		}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" {
			d, ok := map[string]time.Duration{"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
				"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]
			return d, ok
		}
	case *ast.BinaryExpr:
		x, okX := duration(e.X, constants, deep+1)
		y, okY := duration(e.Y, constants, deep+1)
		switch {
		case !okX || !okY:
		case e.Op == token.MUL:
			return x * y, true
		case e.Op == token.ADD:
			return x + y, true
		case e.Op == token.SUB:
			return x - y, true
		case e.Op == token.QUO && y != 0:
			return x / y, true
		}
	}
	return 0, false
}
