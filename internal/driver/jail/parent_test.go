//go:build linux && amd64

package jail

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// holder starts a program in a jail and is killed before it could know of the start: the
// parent-death signal is not set, as if it came too late, and release is not called.
func holder(bare bool) {
	path, err := filepath.EvalSymlinks("/bin/sleep")
	if err != nil {
		panic(err)
	}
	cmd, _, err := Jail{Bare: bare, Show: libraries}.Command(Program{Path: path,
		Args: []string{"1000"}, Files: []*os.File{os.NewFile(3, "alive")}})
	if err != nil {
		panic(err)
	}
	cmd.SysProcAttr.Pdeathsig = 0
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("started\n")
	_, _ = io.ReadAll(os.Stdin)
}

// TestParentGone checks that a process whose parent ended before the parent-death signal was set
// does not become the program.
//
//testrun:user
func TestParentGone(t *testing.T) {
	for _, kind := range []string{"bare", "namespaces"} {
		t.Run(kind, func(t *testing.T) {
			if kind != "bare" {
				needNamespaces(t)
			}
			alive, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = alive.Close() }()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env, cmd.ExtraFiles = append(os.Environ(), "JAIL_TEST_HOLDER="+kind),
				[]*os.File{theirs}
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = theirs.Close()
			if _, err := io.ReadFull(out, make([]byte, len("started\n"))); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = alive.SetReadDeadline(time.Now().Add(2 * time.Minute))
			// the pipe ends when all processes with the other end have ended
			if _, err := io.ReadAll(alive); err != nil {
				t.Errorf("the program has outlived who started it: %v", err)
			}
		})
	}
}
