package agent

import (
	"context"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestTerminal checks a terminal whose size changes, and its input and end.
func TestTerminal(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	id := l.start(wire.ProcessStartParams{Terminal: &wire.ProcessTerminal{Columns: 100, Rows: 30},
		Argv: script("trap 'stty size' WINCH; stty size; test -t 0 && test -t 1 && test -t 2 && " +
			"echo tty $TERM; ps -o tty= $$ >/dev/null && : </dev/tty && echo controlled; while " +
			"read -r x; do echo got $x; done; echo bye >&2")})
	see := func(text string) {
		t.Helper()
		all := ""
		for deadline := time.After(2 * time.Minute); !strings.Contains(all, text); {
			select {
			case v := <-l.events:
				if e, ok := v.(*wire.ProcessOutputEvent); ok {
					if e.Stream != "stdout" {
						t.Errorf("output on %s", e.Stream)
					}
					all += string(e.Data)
				}
			case <-deadline:
				t.Fatalf("no %q in %q", text, all)
			}
		}
	}
	see("30 100\r\ntty xterm-256color\r\ncontrolled\r\n")
	if err := l.ProcessResize(t.Context(),
		&wire.ProcessResizeParams{ProcessID: id, Columns: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		t.Helper()
		if err := l.ProcessWrite(t.Context(),
			&wire.ProcessWriteParams{ProcessID: id, Data: []byte(s)}); err != nil {
			t.Fatal(err)
		}
	}
	write("x\n")
	see("40 120\r\n")
	write("y\n")
	see("got y\r\n")
	kindIs(t, l.ProcessResize(t.Context(),
		&wire.ProcessResizeParams{ProcessID: id, Columns: 0, Rows: 40}), turnstone.KindInvalid)
	kindIs(t, l.ProcessResize(t.Context(),
		&wire.ProcessResizeParams{ProcessID: id, Columns: 70000, Rows: 40}), turnstone.KindInvalid)
	if err := l.ProcessCloseStdin(t.Context(),
		&wire.ProcessCloseStdinParams{ProcessID: id}); err != nil {
		t.Fatal(err)
	}
	see("bye\r\n")
	if e := next[wire.ProcessExitedEvent](l); e.Exit.ExitCode != 0 {
		t.Errorf("%+v", e)
	}
	kindIs(t, l.ProcessResize(t.Context(),
		&wire.ProcessResizeParams{ProcessID: id, Columns: 80, Rows: 24}), turnstone.KindNotFound)
}

// TestTerminalOutput checks that all output to a terminal arrives, whichever process keeps it open.
func TestTerminalOutput(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	for _, tail := range []string{"", "; (trap '' HUP; sleep 0.5; echo late; sleep 1) &"} {
		id := l.start(wire.ProcessStartParams{Terminal: &wire.ProcessTerminal{Columns: 80,
			Rows: 24}, Argv: script("seq 20000" + tail)})
		got := l.collect(id)
		if out := got.out["stdout"]; !strings.HasPrefix(out, "1\r\n2\r\n") ||
			!strings.HasSuffix(out, "\r\n20000\r\n") || len(out) != 128894 {
			t.Errorf("%d bytes, ending in %q", len(out), out[max(0, len(out)-20):])
		}
	}
}

// TestSignalTree checks that a signal reaches the process and its descendants.
func TestSignalTree(t *testing.T) {
	h := newHarness(t)
	l := h.listen(nil)
	id := l.start(wire.ProcessStartParams{
		Argv: script("trap 'echo main; wait; exit 5' TERM; bash -c 'trap \"echo child; exit\" " +
			"TERM; echo up; while :; do sleep 0.05; done' & wait")})
	if e := next[wire.ProcessOutputEvent](l); string(e.Data) != "up\n" {
		t.Fatalf("%q", e.Data)
	}
	kindIs(t, l.ProcessSignal(t.Context(),
		&wire.ProcessSignalParams{ProcessID: id, Signal: "NOPE"}), turnstone.KindInvalid)
	if err := l.ProcessSignal(t.Context(),
		&wire.ProcessSignalParams{ProcessID: id, Signal: "term"}); err != nil {
		t.Fatal(err)
	}
	got := l.collect(id)
	if out := got.out["stdout"]; !strings.Contains(out, "main\n") ||
		!strings.Contains(out, "child\n") || got.exit.Exit.ExitCode != 5 || got.exit.Exit.Killed {
		t.Errorf("%q %+v", out, got.exit)
	}
	kindIs(t, l.ProcessSignal(t.Context(),
		&wire.ProcessSignalParams{ProcessID: id, Signal: "SIGKILL"}), turnstone.KindNotFound)
}

// TestUser checks that a process runs as the named user.
func TestUser(t *testing.T) {
	h := newHarness(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	type want struct{ user, out string }
	wants := []want{{me.Username, me.Uid + " " + me.Gid + " " + me.HomeDir + " " + me.Username}}
	if os.Getuid() == 0 {
		wants = append(wants, want{"nobody", "65534 65534 /nonexistent nobody"},
			want{"65534:daemon", "65534 1 /nonexistent nobody"},
			want{"12345", "12345 12345 /"}, want{"0", "0 0 /root root"})
	}
	for _, w := range wants {
		l := h.listen(nil)
		id := l.start(wire.ProcessStartParams{Argv: script("echo $(id -u) $(id -g) $HOME $USER"),
			User: w.user, Cwd: "/"})
		if got := l.collect(id); strings.TrimSpace(got.out["stdout"]) != w.out {
			t.Errorf("as %s: %q %q, want %q", w.user, got.out["stdout"], got.out["stderr"], w.out)
		}
	}
	for _, bad := range []string{"no-such-user", "root:no-such-group", ":", "4294967295"} {
		_, err := h.ProcessStart(t.Context(),
			&wire.ProcessStartParams{Argv: script("true"), User: bad})
		kindIs(t, err, turnstone.KindNotFound)
	}
}

// TestStepUser checks that steps run as the named user, and that the session still continues.
func TestStepUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("takes root")
	}
	for _, c := range []struct {
		name     string
		harness  func(*testing.T) *harness
		language wire.ShellExecuteLanguage
	}{{"traced", newTracedHarness, wire.ShellExecuteLanguageBash},
		{"untraced", newHarness, wire.ShellExecuteLanguageBash},
		{"sh", newHarness, wire.ShellExecuteLanguageSh}} {
		t.Run(c.name, func(t *testing.T) { stepsAsUser(t, c.harness(t), c.language) })
	}
}

func stepsAsUser(t *testing.T, h *harness, language wire.ShellExecuteLanguage) {
	for dir := h.dir; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.user = "nobody:daemon"
	run := func(script, want string) {
		t.Helper()
		if got := h.step(string(language), script); got.stdout != want {
			t.Errorf("%s: %q, want %q; %q", script, got.stdout, want, got.stderr)
		}
	}
	run("id -u; id -g; echo $HOME; export A=1; cd /", "65534\n1\n/nonexistent\n")
	run("pwd; echo $A; export HOME=/mine", "/\n1\n")
	run("echo $HOME $USER; id -u", "/mine nobody\n65534\n")
}

// TestWriteWaits checks that a write is answered when the pipe has accepted it, and ends with the
// process or the connection.
func TestWriteWaits(t *testing.T) {
	h := newHarness(t)
	id := h.listen(nil).start(wire.ProcessStartParams{Argv: []string{"sleep", "100"}, Stdin: true})
	big := make([]byte, 1<<20)
	write := func(c *wire.Conn, ctx context.Context) error {
		return c.ProcessWrite(ctx, &wire.ProcessWriteParams{ProcessID: id, Data: big})
	}
	if err := write(h.Conn, t.Context()); err != nil { // fits into the pipe
		t.Fatal(err)
	}
	kindIs(t, h.ProcessWrite(t.Context(), &wire.ProcessWriteParams{ProcessID: id,
		Data: make([]byte, 1<<20+1)}), turnstone.KindInvalid)
	gone := h.listen(nil)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if err := write(gone.Conn, short); err == nil {
		t.Error("a write to a full pipe was answered")
	}
	_ = gone.Close() // ends its write
	second := make(chan error, 1)
	go func() { second <- write(h.Conn, t.Context()) }()
	select {
	case err := <-second:
		t.Errorf("the second write was answered: %v", err)
	case <-time.After(200 * time.Millisecond): //wait: longer only makes the check stricter
	}
	if err := h.ProcessSignal(t.Context(),
		&wire.ProcessSignalParams{ProcessID: id, Signal: "9"}); err != nil {
		t.Fatal(err)
	}
	// The second write gets the broken pipe, or the end that broke it.
	if err := <-second; turnstone.KindOf(err) != turnstone.KindNotFound &&
		turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("the second write: %v", err)
	}
}

// TestKeptProcesses checks that the latest ended processes are kept.
func TestKeptProcesses(t *testing.T) {
	h := newHarness(t)
	for i := range 70 {
		if _, err := h.Start(t.Context(), wire.ProcessStartParams{ProcessID: "k" + strconv.Itoa(i),
			Argv: []string{"true"}}, wire.Stdio{}); err != nil {
			t.Fatal(err)
		}
	}
	var res *wire.ProcessListResult
	waitFor(t, "the oldest to be forgotten", func() bool {
		var err error
		res, err = h.ProcessList(t.Context())
		return err == nil && len(res.Processes) == 64
	})
	if first, last := res.Processes[0].ProcessID, res.Processes[63].ProcessID; first != "k6" ||
		last != "k69" {
		t.Errorf("from %s to %s", first, last)
	}
}
