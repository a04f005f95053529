package substratetest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The environment variables that make a driver's test binary another program.
const (
	holdVar  = "TURNSTONE_TEST_HOLD"
	benchVar = "TURNSTONE_BENCH"
)

// Child ends this process after hold, if Killed started it, or after bench, if the command bench
// started it. Otherwise Child returns. A driver's TestMain calls Child first.
//
// hold starts a sandbox, prints the IDs of its processes in one line, and waits; its argument is
// that of Killed. bench runs the measurement of a mode.
func Child(hold, bench func(string) error) {
	for name, run := range map[string]func(string) error{holdVar: hold, benchVar: bench} {
		value := os.Getenv(name)
		if value == "" {
			continue
		}
		if err := run(value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Killed starts this test binary as a process that holds a sandbox, kills the process, which cannot
// prepare for its end, and checks that all processes of the sandbox end. Killed returns their IDs.
func Killed(t *testing.T, hold string, env ...string) (pids []int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), holdVar+"="+hold), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	line := make([]byte, 1000)
	n, err := out.Read(line)
	if err != nil {
		_ = cmd.Wait()
		t.Fatalf("the holder prints no processes: %v: %s", err, stderr.String())
	}
	for _, word := range strings.Fields(string(line[:n])) {
		var pid int
		_, err := fmt.Sscan(word, &pid)
		check(t, err)
		if !Alive(pid) {
			t.Fatalf("process %d does not run", pid)
		}
		pids = append(pids, pid)
	}
	check(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, pid := range pids {
		for until := time.Now().Add(2 * time.Minute); Alive(
			pid); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("process %d outlives its killed parent", pid)
			}
		}
	}
	return pids
}

// Alive reports whether a process runs. An ended process that its parent has not reaped does not
// run.
func Alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
