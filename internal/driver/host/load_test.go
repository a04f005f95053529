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

// TestCPUTime: a grandchild that computes counts, while it runs and after it was waited for.
func TestCPUTime(t *testing.T) {
	cmd := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo; read x`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil { // the grandchild has ended
		t.Fatal(err)
	}
	if used := CPUTime(cmd.Process.Pid); used < 20*time.Millisecond || used > time.Minute {
		t.Errorf("it used %s", used)
	}
	if used := CPUTime(1 << 30); used != 0 {
		t.Errorf("no process used %s", used)
	}
}
