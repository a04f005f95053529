package agent

import (
	"bytes"
	"errors"
	"os/exec"
	"syscall"
	"testing"
)

// plain runs a program as the agent would, without the agent.
func plain(t *testing.T, dir string, env []string,
	argv ...string) (stdout, stderr string, code int64) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return out.String(), errs.String(), 128 + int64(ws.Signal())
	}
	return out.String(), errs.String(), int64(ws.ExitStatus())
}
