package localserver

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// detach starts its arguments in the background and prints their process ID: whoever waits for the
// shell does not become their parent, so the server is nobody's child that has to be waited for.
const detach = `"$@" >&3 2>&3 3>&- </dev/null & echo $!`

// launch starts the server in a session of its own. ended reports whether its process is gone.
func launch(ctx context.Context, program, dir string, log *os.File) (ended func() bool, err error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", detach, "sh", program, "serve", "--local")
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "TURN_TOKEN=") || strings.HasPrefix(kv, "TURN_HOST=")
	})
	cmd.Env = append(cmd.Env, "TURN_HOME="+dir)
	cmd.Dir, cmd.ExtraFiles = dir, []*os.File{log}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return nil, err
	}
	return func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) }, nil
}

// zombie reports a process that has ended and that its new parent has not waited for, such as in a
// container whose first process waits for none.
func zombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}
