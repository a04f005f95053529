package proofcmd

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal/terminaltest"
)

// pseudoTerminal returns both ends of a new terminal.
func pseudoTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return user, program
}

// TestFrozenOnTerminal: a terminal obeys nothing that a receipt says, and shows a difference that
// consists of control characters alone.
func TestFrozenOnTerminal(t *testing.T) {
	user, program := pseudoTerminal(t)
	f := FrozenFile{File: "r.md", Again: &turnstone.FrozenReport{
		Differences: []turnstone.FrozenDifference{
			{Step: "one\x1b[2J", Line: 3, What: "stdout", Diff: "-\x1b[2K\x1b]0;t\x07hello\u009b\n+hello\n"}},
		Turn: &turnstone.TurnReport{}}}
	if err := f.print(&cli.App{Stdout: program}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := user.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(string(buf[:n]), "\r\n", "\n")
	terminaltest.Harmless(t, "turn run --frozen", got)
	if strings.Contains(got, "\n-hello") || !strings.Contains(got, "\n+hello\n") {
		t.Errorf("the difference does not show: %q", got)
	}
}
