package agent

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FuzzCapture checks that no capture results in an environment that a shell could not have.
func FuzzCapture(f *testing.F) {
	f.Add([]byte("/tmp\n\x00declare -x A=\"a\\\"b\"\ndeclare -ix B=$'\\n\\303'\ndeclare -x C\n"+
		"declare -ax D=([0]=\"x\")\n\x00f () \n{ \n    :\n}\ndeclare -fx f\n\x00"), true)
	f.Add([]byte("/tmp\n\x00A=1\x00B=2\n3\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, bash bool) {
		parse := parseSh
		if bash {
			parse = parseBash
		}
		c, err := parse(b)
		if err != nil {
			if c.cwd != "" || c.vars != nil || c.funs != nil {
				t.Fatalf("an error and a capture: %+v", c)
			}
			return
		}
		if !strings.HasPrefix(c.cwd, "/") || strings.Contains(c.cwd, "\x00") {
			t.Fatalf("cwd %q", c.cwd)
		}
		for _, kv := range slices.Concat(c.vars, c.funs) {
			name, _, ok := strings.Cut(kv, "=")
			if !ok || name == "" || strings.Contains(kv, "\x00") {
				t.Fatalf("entry %q", kv)
			}
		}
	})
}

// FuzzExportRoundTrip checks that every value survives bash's "export -p".
func FuzzExportRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a b", "\"\\$`'", "\n\t\r\x01\x7f", "\xff\xfe", "é", "$'x'",
		"(a)", "\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.Contains(value, "\x00") || len(value) > 10000 {
			t.Skip()
		}
		for _, lang := range []string{"C.UTF-8", "C"} {
			cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", "export -p")
			cmd.Env = []string{"LC_ALL=" + lang, "V=" + value}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			vars, err := parseExports(string(out))
			if err != nil || !slices.Contains(vars, "V="+value) {
				t.Fatalf("%q in %s: %q %v, from %q", value, lang, vars, err, out)
			}
		}
	})
}

// TestDependencies checks that the agent stays small: no database, no cluster, no cloud. net/http
// is a dependency of the package that reads and writes frames; the linker removes nearly all of it.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"turnstone.dev/turnstone/cmd/turn-agent").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		for _, bad := range []string{"net/http/httputil", "database/sql", "sqlite", "k8s.io", "aws",
			"minio", "cloud.google", "Azure", "google.golang.org/grpc"} {
			if strings.Contains(pkg, bad) {
				t.Errorf("the agent imports %s", pkg)
			}
		}
	}
}

// TestSize checks the size of the agent's program, which every snapshot contains. The flags are the
// Makefile's.
func TestSize(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the agent")
	}
	file := filepath.Join(t.TempDir(), "agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags",
		"netgo,osusergo",
		"-ldflags", `-s -w -linkmode external -extldflags "-static"`, "-o", file,
		"turnstone.dev/turnstone/cmd/turn-agent")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > 25<<20 {
		t.Errorf("the agent has %d bytes, more than 25 MiB", st.Size())
	}
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the agent is not linked statically")
		}
	}
	t.Logf("%d bytes", st.Size())
}
