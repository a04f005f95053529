package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Inside runs the test TestInside of the package again, with the variable set, in a process that has a server of its
// own, whose sandboxes are real: scripts/test-server says what it finds there. settings are the server's.
func Inside(t *testing.T, root, variable, settings string) {
	t.Helper()
	if os.Getenv(variable) != "" {
		t.Skip("that is TestInside")
	}
	if testing.Short() {
		t.Skip("it runs sandboxes: make test does")
	}
	for _, name := range []string{"turn", "turn-server", "runsc"} {
		if _, err := os.Stat(filepath.Join(root, "bin", name)); err != nil {
			t.Skip("make build has not built bin/" + name)
		}
	}
	file := filepath.Join(t.TempDir(), "server.toml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/test-server"), "--settings", file,
		os.Args[0], "-test.run=^TestInside$", "-test.v", "-test.timeout=25m")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInside") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
