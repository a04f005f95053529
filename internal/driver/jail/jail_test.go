//go:build linux && amd64

package jail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// run starts a program of system calls and returns its output and its exit code.
func run(t interface{ Fatal(...any) }, code *program) (stdout, stderr string, status int) {
	f, err := executable(code.elf())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cmd := exec.Command(ownFiles + "/3")
	cmd.ExtraFiles = []*os.File{f}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

// TestProgram checks that the calls are made in order with their data, up to the first failure,
// which is reported.
//
//testrun:user
func TestProgram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringN(1, 40, 200), 0, 40).Draw(t, "texts")
		fails := rapid.IntRange(-1, len(texts)).Draw(t, "fails")
		code, want := new(program), ""
		for i, s := range append(texts, "end") {
			if i == fails {
				code.call(fmt.Sprint("step ", i), unix.SYS_MKDIR, code.text("/proc/none/"+s), 0o755)
			}
			if fails < 0 || i < fails {
				want += s
			}
			code.call("write", unix.SYS_WRITE, 1, code.text(s), uint64(len(s)))
		}
		code.exit()
		out, said, status := run(t, code)
		if out != want {
			t.Fatalf("wrote %q, want %q", out, want)
		}
		failure := startFailure(said, status)
		if fails < 0 {
			if status != 0 || said != "" || failure != nil {
				t.Fatalf("status %d, %q", status, said)
			}
			return
		}
		if !errors.Is(failure, syscall.ENOENT) ||
			!strings.Contains(failure.Error(), fmt.Sprint("step ", fails)) {
			t.Fatalf("status %d, %q, failure %v", status, said, failure)
		}
	})
}
