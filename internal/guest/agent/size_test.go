package agent

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

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
