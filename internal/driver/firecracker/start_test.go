package firecracker

import (
	"os"
	"os/exec"
	"testing"
)

// TestAfterLine checks that the shell above the jailer starts it if the parent has written the
// line, and not if the pipe just ends, and that its program inherits no descriptor of it.
func TestAfterLine(t *testing.T) {
	for line, want := range map[string]string{"": "", "\n": "started"} {
		waits, start, err := os.Pipe()
		check(t, err)
		_, _ = start.WriteString(line)
		_ = start.Close()
		cmd := exec.Command("/bin/sh", "-c", afterLine, "sh", "/bin/sh", "-c",
			"printf started; test ! -e /proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{waits}
		out, err := cmd.Output()
		_ = waits.Close()
		if string(out) != want || (err == nil) != (want != "") {
			t.Errorf("after %q: %q, %v", line, out, err)
		}
	}
}
