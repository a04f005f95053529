//go:build !turnstone_client

package subprocess

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseOnExec checks that a program gets only the passed descriptors.
func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func() error{"CloseOnExec": CloseOnExec,
		"closeOnExecEach": closeOnExecEach} {
		low, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // like a shell's `7</etc/passwd`
		if err != nil {
			t.Fatal(err)
		}
		high, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD, 600)
		if err != nil {
			t.Fatal(err)
		}
		if got := inherited(t); !slices.Contains(got, "/etc/passwd") {
			t.Fatalf("%s: without it a program has %q, and should have the file", name, got)
		}
		if err := mark(); err != nil {
			t.Fatal(err)
		}
		if got := inherited(t); slices.Contains(got, "/etc/passwd") ||
			!slices.Contains(got, "/etc/hostname") {
			t.Errorf("%s: a program has %q", name, got)
		}
		_, _ = unix.Close(low), unix.Close(high)
	}
}

// inherited returns a program's open descriptors from 3 on; /etc/hostname is passed to the program.
func inherited(t *testing.T) []string {
	t.Helper()
	given, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = given.Close() }()
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{given}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _, _ = io.Copy(io.Discard, out); _ = cmd.Wait() }()
	dir := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		to, _ := os.Readlink(dir + e.Name())
		all = append(all, to)
	}
	return all
}
