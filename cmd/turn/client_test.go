package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/repo/repotest"
)

// clientTags are those of the client; two are also those of all other programs, so that what both consist
// of is compiled once.
const clientTags = "turnstone_client,netgo,osusergo"

// TestClientScript runs scripts with the client of macOS and Windows, built for this system: without
// cgo, and with the files of the systems that run no sandboxes.
func TestClientScript(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the client")
	}
	needGo(t)
	bin := t.TempDir()
	build := exec.Command("go", "build", "-tags", clientTags, "-o",
		filepath.Join(bin, "turn"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	past := repotest.New(t).Sign() // a turn that its node signed
	past.Turn(past.Session("past"), "main")
	receipt := repotest.OK[[]byte](t)(past.Repo.Receipt(t.Context(), "past@1"))
	node := repotest.OK[[]byte](t)(os.ReadFile(past.Repo.Dir.Path("keys", "node.pub")))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/client",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                commands,
		Setup: func(env *testscript.Env) error {
			env.Setenv("TURN_HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("NODE", "node="+strings.TrimSpace(string(node)))
			line := append([]byte("node "), node...)
			return errors.Join(
				os.WriteFile(filepath.Join(env.WorkDir, "receipt.md"), receipt, 0o600),
				os.WriteFile(filepath.Join(env.WorkDir, "node.trust"), line, 0o600))
		},
	})
}

// TestClientImports checks that the client contains neither what runs sandboxes nor the store.
func TestClientImports(t *testing.T) {
	needGo(t)
	const ours = "turnstone.dev/turnstone/"
	list := exec.Command("go", "list", "-deps", "-tags", clientTags, ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	all := strings.Fields(string(repotest.OK[[]byte](t)(list.Output())))
	if !slices.Contains(all, ours+"executor") {
		t.Fatalf("the client consists of %q", all)
	}
	for _, p := range all {
		for _, bad := range []string{ours + "internal/engine", ours + "internal/driver",
			ours + "internal/repo", ours + "internal/store/session", ours + "internal/guest",
			"modernc.org/sqlite", "gvisor.dev/gvisor", "github.com/minio/minio-go"} {
			if p == bad || strings.HasPrefix(p, bad+"/") {
				t.Errorf("the client imports %s", p)
			}
		}
	}
}

// needGo skips a test that builds where its user has no Go: the user that root's tests run again as.
func needGo(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
}
