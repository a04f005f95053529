package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestLoad checks that a waiting process is distinguished from a computing process.
func TestLoad(t *testing.T) {
	start := func(script string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	waits, computes := start("exec sleep 600"), start("while :; do :; done")
	for {
		l, err := Load(computes.Process.Pid)
		if err != nil || !l.Busy {
			t.Fatalf("it computes: %+v, %v", l, err)
		}
		if l.CPU > 50*time.Millisecond {
			break
		}
	}
	for {
		l, err := Load(waits.Process.Pid)
		if err != nil || l.CPU > time.Minute {
			t.Fatalf("it waits: %+v, %v", l, err)
		}
		if !l.Busy { // when the shell has become sleep
			break
		}
	}
	if _, err := Load(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}

func FuzzParseStat(f *testing.F) {
	b, _ := os.ReadFile("/proc/self/stat")
	f.Add(b)
	f.Add([]byte("1 (a) b) S 1 1 1 1 1 1 1 1 1 1 30 12 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if state, _, err := parseStat(b); err == nil && state == ' ' {
			t.Errorf("%q", b)
		}
	})
	if state, ticks, err := parseStat(
		[]byte("1 (a) b) S 1 1 1 1 1 1 1 1 1 1 30 12 0")); state != 'S' || ticks != 42 ||
		err != nil {
		f.Error(fmt.Sprint(state, ticks, err))
	}
}
