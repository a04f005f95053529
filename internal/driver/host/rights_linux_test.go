package host

import (
	"os"
	"os/exec"
	"testing"
)

// TestRights: a process with other rights, such as one in a container, has other settings, so that it
// believes no verdict that was found with more or fewer rights.
func TestRights(t *testing.T) {
	if os.Getenv("TURN_TEST_RIGHTS") != "" {
		os.Stdout.WriteString(NamespaceSettings())
		os.Exit(0)
	}
	ask := func(wrap ...string) string {
		t.Helper()
		args := append(wrap, os.Args[0], "-test.run=^TestRights$")
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "TURN_TEST_RIGHTS=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return string(out)
	}
	same, narrow := ask(), ask("setpriv", "--no-new-privs")
	if again := ask(); again != same {
		t.Errorf("%q, then %q", same, again)
	}
	if narrow == same {
		t.Errorf("with no_new_privs as without: %q", same)
	}
	if os.Geteuid() == 0 {
		if bounded := ask("setpriv", "--bounding-set=-sys_admin"); bounded == same || bounded == narrow {
			t.Errorf("with a smaller bounding set: %q", bounded)
		}
	}
}
