package internal_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "turnstone.dev/turnstone"

// The bounds of a package: hand-written lines without tests, and imports of this module.
const (
	maxLines   = 4000
	maxImports = 15
)

// mustNotImport names packages, and what neither they nor what they import may import. A name that
// ends in /... stands for everything below, too. After "directly " only their own imports count.
var mustNotImport = map[string][]string{
	"internal/repo/...": {"internal/driver/...", "directly substrate/...", "wire/...",
		"sandboxes/...", "internal/sandbox/...", "executor/..."},
	"internal/plan":      {"internal/turn/...", "internal/repo/...", "executor/..."},
	"internal/host":      {"internal/turn/...", "internal/provision", "executor/..."},
	"internal/provision": {"internal/turn/...", "executor/..."},
	"internal/turn/...": {"internal/engine", "internal/templatebuild/...", "internal/repo/bundle",
		"internal/repo/branchmerge", "executor/..."},
	"internal/proof/...": {"internal/repo/...", "internal/store/...", "internal/turn/...",
		"executor/..."},
	"internal/keyring/...": {"internal/repo/...", "internal/store", "internal/turn/...", "wire/...",
		"executor/...", "sandboxes/...", "internal/cli/...", "internal/config",
		"internal/server/..."},
	"internal/channel": {"internal/...", "wire/...", "executor/...", "sandboxes/..."},
	"internal/api/...": {"internal/channel/...", "internal/server/...", "internal/repo/...",
		"internal/store/...", "internal/turn/...", "document/...", "wire/...", "executor/...",
		"sandboxes/..."},
	"internal/server/auth": {"internal/...", "wire/...", "executor/...", "sandboxes/..."},
	// The validator of requests would delay every command by 2 ms.
	"cmd/turn":                   {"internal/api/serve", "internal/server/telemetry"},
	"internal/server/node/...":   {"internal/server/telemetry"},
	"internal/server/controller": {"internal/server/telemetry"},
	"internal/server/trail":      {"internal/..."},
	"cmd/turn-agent": {"internal/proof/...", "internal/repo/...", "internal/otlp",
		"internal/channel/attest", "internal/server/...", "internal/api/..."},
	"internal/server/relay": {"internal/...", "wire/...", "executor/...", "sandboxes/..."},
	"internal/server/gateway": {"internal/server/telemetry", "internal/channel/...", "internal/repo/...", "internal/store/...",
		"internal/proof/...", "document/...", "wire/...", "executor/...", "sandboxes/..."},
	"internal/server/records": {"internal/api/...", "internal/channel/...", "internal/repo/...",
		"internal/store/...", "internal/proof/...", "document/...", "wire/...", "executor/...",
		"sandboxes/..."},
	"internal/server/controller/...": {"internal/channel/...", "internal/repo/...", "internal/store/...",
		"wire/...", "executor/...", "sandboxes/..."},
	"internal/lang/...": {"document", "internal/template/...", "internal/repo/...", "executor/...",
		"wire/..."},
}

// A goPackage is what go list says of a package.
type goPackage struct {
	ImportPath, Dir, Doc string
	GoFiles              []string
	Imports, Deps        []string
}

// name is the path below the module; empty for the module's root.
func name(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// among reports whether pattern names the package called p.
func among(p, pattern string) bool {
	top, all := strings.CutSuffix(pattern, "/...")
	return p == top || all && strings.HasPrefix(p, top+"/")
}

// listed is what go list says of all packages. It takes a second: all tests have it once.
var listed = sync.OnceValues(func() (all []goPackage, err error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,GoFiles,Imports,Deps", "./...")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func packages(t *testing.T) []goPackage {
	t.Helper()
	all, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// lines counts what was written by hand.
func (p goPackage) lines(t *testing.T) (n int) {
	t.Helper()
	for _, file := range p.GoFiles {
		f, err := os.Open(filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		in, generated := 0, false
		for s := bufio.NewScanner(f); s.Scan(); in++ {
			generated = generated || in < 5 && strings.HasPrefix(s.Text(), "// Code generated ")
		}
		_ = f.Close()
		if !generated {
			n += in
		}
	}
	return n
}

func TestSizes(t *testing.T) {
	for _, p := range packages(t) {
		lines, imports := p.lines(t), 0
		for _, i := range p.Imports {
			if i == module || strings.HasPrefix(i, module+"/") {
				imports++
			}
		}
		if lines > maxLines || imports > maxImports {
			t.Errorf("%s has %d lines and %d imports of this module; the bounds are %d and %d",
				p.ImportPath, lines, imports, maxLines, maxImports)
		}
	}
}

// TestKubernetesIsApart checks that the operator alone has libraries of Kubernetes.
func TestKubernetesIsApart(t *testing.T) {
	found := false
	for _, p := range packages(t) {
		n := name(p.ImportPath)
		if among(n, "internal/kube/...") || n == "cmd/turn-operator" {
			found = true
			continue
		}
		for _, d := range p.Deps {
			if strings.HasPrefix(d, "k8s.io/") || strings.HasPrefix(d, "sigs.k8s.io/") ||
				among(name(d), "internal/kube/...") && strings.HasPrefix(d, module+"/") {
				t.Errorf("%s imports %s", p.ImportPath, d)
			}
		}
	}
	if !found {
		t.Error("there is no operator")
	}
}

func TestImports(t *testing.T) {
	all := packages(t)
	for who, bad := range mustNotImport {
		found := false
		for _, p := range all {
			if !among(name(p.ImportPath), who) {
				continue
			}
			found = true
			for _, b := range bad {
				b, direct := strings.CutPrefix(b, "directly ")
				deps := p.Deps
				if direct {
					deps = p.Imports
				}
				for _, d := range deps {
					if strings.HasPrefix(d, module+"/") && among(name(d), b) {
						t.Errorf("%s imports %s", p.ImportPath, d)
					}
				}
			}
		}
		if !found {
			t.Errorf("there is no package %s", who)
		}
	}
}

// mayRead lists the packages below the public packages that read the environment, each with its
// reads. "all of it" is given to child processes.
var mayRead = map[string][]string{
	"client":                   {`"TURN_H`, `"TURN_TOKEN"`}, // which server: as turn does
	"internal/hostca":          {"name"},                    // SSL_CERT_FILE, SSL_CERT_DIR
	"internal/keyring/agewrap": {`"AGEDEBUG"`},              // refused: it prints keys
	"internal/remote":          {`"SSL_CERT_FILE"`},         // named in a hint
	"internal/proof/key":       {`"SSH_AUTH_SOCK"`},         // as ssh does
	"internal/statedir":        {`"XDG_DATA_HOME"`},
	"internal/store/blob/s3":   {`"AWS_`},
	"internal/template/debian": {`"PATH"`, "name"}, // proxies
	"sandboxes":                {"all of it"},      // host.Options.Environ replaces what turn reads
}

// TestEnvironmentIsRead checks that packages that a program can import read no variable TURN_* of
// the environment, and no other variable, that mayRead does not list.
func TestEnvironmentIsRead(t *testing.T) {
	all, library := packages(t), map[string]bool{}
	for _, p := range all {
		n := name(p.ImportPath)
		if !strings.HasPrefix(n+"/", "internal/") && !strings.HasPrefix(n, "cmd/") &&
			!strings.HasSuffix(n, "test") && !strings.Contains(n, "/internal/") {
			library[p.ImportPath] = true
			for _, d := range p.Deps {
				library[d] = true
			}
		}
	}
	if !library[module+"/internal/statedir"] {
		t.Fatalf("libraries are %v", library)
	}
	found := map[string]bool{}
	for _, p := range all {
		if !library[p.ImportPath] {
			continue
		}
		for _, file := range p.GoFiles {
			for _, read := range reads(t, filepath.Join(p.Dir, file)) {
				n := name(p.ImportPath)
				found[n] = true
				if !slices.ContainsFunc(mayRead[n], func(may string) bool {
					return strings.HasPrefix(read, may)
				}) {
					t.Errorf("%s/%s reads %s of the environment", n, file, read)
				}
			}
		}
	}
	for n := range mayRead {
		if !found[n] {
			t.Errorf("%s does not read the environment", n)
		}
	}
}

// reads returns the reads of the environment in a file: the argument of each call, or "all of it".
func reads(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	args := map[ast.Expr]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && len(c.Args) == 1 {
			base := file.FileStart
			args[c.Fun] = string(text[c.Args[0].Pos()-base : c.Args[0].End()-base])
		}
		if s, ok := n.(*ast.SelectorExpr); ok && readsEnvironment(s) {
			if read := args[s]; read != "" {
				all = append(all, read)
			} else {
				all = append(all, "all of it")
			}
		}
		return true
	})
	return all
}

// readsEnvironment reports whether s is a function that reads the environment.
func readsEnvironment(s *ast.SelectorExpr) bool {
	x, ok := s.X.(*ast.Ident)
	return ok && (x.Name == "os" || x.Name == "syscall" || x.Name == "unix") && slices.Contains(
		[]string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}, s.Sel.Name)
}

// TestPackagesHaveComments checks that every package that is not only tests has a package comment.
func TestPackagesHaveComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// TestProxiesAnswerEarly checks that proxies of HTTP are served by package duplex: an answer that
// begins before the proxy has read the request would be cut.
func TestProxiesAnswerEarly(t *testing.T) {
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if s := string(text); strings.Contains(s, "httputil.ReverseProxy{") &&
				!strings.Contains(s, "duplex.Handler(") {
				t.Errorf("%s/%s serves a ReverseProxy without duplex.Handler", name(p.ImportPath), file)
			}
		}
	}
}
