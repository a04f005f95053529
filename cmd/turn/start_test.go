package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestStartIsCheap checks that no package of the project allocates much memory while turn starts,
// which would delay every command. It counts allocations, because times are meaningless on a busy
// machine.
func TestStartIsCheap(t *testing.T) {
	const most = 32 << 10 // bytes in one package
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	turn := filepath.Join(t.TempDir(), "turn") // under this name it is not a test binary: TestMain
	if err := os.Symlink(self, turn); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(turn, "version")
	cmd.Env = []string{"GODEBUG=inittrace=1", "TURN_HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := regexp.MustCompile(
		`(?m)^init (turnstone\.dev/\S+|main) @.*, (\d+) bytes,`).FindAllSubmatch(out, -1)
	if len(lines) < 3 {
		t.Fatalf("no packages in %s", out)
	}
	for _, l := range lines {
		limit := most
		if strings.HasSuffix(string(l[1]), "/internal/api/turnstone/v1") {
			limit = 144 << 10 // protobuf builds its generated types at start, and cannot do it later
		}
		if n, err := strconv.Atoi(string(l[2])); err != nil || n > limit {
			t.Errorf("%s allocates %s bytes at start: make it with sync.OnceValue or lazyregexp",
				l[1], l[2])
		}
	}
}
