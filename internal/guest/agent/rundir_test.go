package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestOccupiedRunDir checks that the next step runs, whatever a step puts where the agent will
// write, and that nothing waits for the other end of a pipe.
func TestOccupiedRunDir(t *testing.T) {
	for _, put := range []func(path string) error{
		func(p string) error { return syscall.Mkfifo(p, 0o600) },
		func(p string) error { return os.Symlink("/dev/full", p) },
		func(p string) error { return os.WriteFile(p, []byte("echo no"), 0o000) },
		func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		h := newHarness(t)
		run := filepath.Join(h.dir, "run")
		for _, name := range []string{"1-s.sh", "capture-1.bash", "state"} {
			if err := put(filepath.Join(run, name)); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan ran, 1)
		go func() { done <- h.bash("trap 'echo bye' EXIT; export A=1; echo hi") }()
		select {
		case r := <-done:
			if r.stdout != "hi\nbye\n" || r.finished.StateLost {
				t.Errorf("%+v", r)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("the step does not begin")
		}
	}
}

// TestRunDirInRoot checks that links that a step puts into its root never lead the agent out of it,
// whatever the agent writes, creates or reads through them.
func TestRunDirInRoot(t *testing.T) {
	root, out := t.TempDir(), t.TempDir()
	a, err := New(Options{Chroot: root, Cwd: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	a.ServeConn(far)
	c := wire.NewClient(near)
	err = errors.Join(os.RemoveAll(root+"/run/turn"), os.Symlink(out, root+"/run/turn"),
		os.Symlink(out, root+"/link"),
		os.WriteFile(filepath.Join(out, "state"), []byte("precious"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	no := false
	if _, err := c.ShellExecute(t.Context(),
		&wire.ShellExecuteParams{Name: "x", Script: "evil\n", Trace: &no}); err == nil {
		t.Error("a step ran without a shell")
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 1 {
		t.Errorf("outside of the root: %v %v", left, err)
	}
	_ = c.Close()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestRemovedRunDir checks that a step that removes or replaces the agent's files does not affect
// later steps: session and state continue, and no link is followed.
func TestRemovedRunDir(t *testing.T) {
	out := t.TempDir()
	for name, lose := range map[string]func(run string) error{
		"removed": func(string) error { return nil },
		"empty":   func(run string) error { return os.Mkdir(run, 0o700) },
		"file":    func(run string) error { return os.WriteFile(run, nil, 0o600) },
		"dangling link": func(run string) error {
			return os.Symlink(filepath.Join(out, "planted"), run)
		},
		"pipe": func(run string) error { return syscall.Mkfifo(run, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			run := filepath.Join(h.dir, "run")
			h.bash("export A=1")
			if err := errors.Join(os.RemoveAll(run), lose(run)); err != nil {
				t.Fatal(err)
			}
			if r := h.bash("echo $A; export B=2"); r.stdout != "1\n" || r.finished.StateLost {
				t.Errorf("%+v", r)
			}
			if r := h.bash("trap 'echo bye' EXIT; echo $A$B"); r.stdout != "12\nbye\n" ||
				r.finished.StateLost {
				t.Errorf("%+v", r)
			}
		})
	}
	if left, err := os.ReadDir(out); err != nil || len(left) != 0 {
		t.Errorf("made behind a link: %v %v", left, err)
	}
}

// TestRunDirBehindLink checks that the directory is not created behind a link on its path.
func TestRunDirBehindLink(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	a, err := New(Options{RunDir: filepath.Join(dir, "run", "turn"), Cwd: dir})
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, a)
	if err := errors.Join(os.RemoveAll(dir+"/run"), os.Symlink(out, dir+"/run")); err != nil {
		t.Fatal(err)
	}
	_, err = h.ShellExecute(t.Context(), &wire.ShellExecuteParams{Script: "true"})
	kindIs(t, err, turnstone.KindUnavailable)
	if left, err := os.ReadDir(out); err != nil || len(left) != 0 {
		t.Errorf("made behind a link: %v %v", left, err)
	}
	if err := os.Remove(dir + "/run"); err != nil {
		t.Fatal(err)
	}
	if r := h.bash("echo on"); r.stdout != "on\n" || r.finished.StateLost {
		t.Errorf("%+v", r)
	}
}

// TestScriptFiles checks that the scripts of many steps do not fill the run directory.
func TestScriptFiles(t *testing.T) {
	h := newHarness(t)
	for range 2 * keepFiles {
		h.bash("trap 'true' EXIT")
	}
	if r := h.bash("cat $0"); r.stdout != "cat $0" {
		t.Errorf("%+v", r)
	}
	big := h.bash("true" + strings.Repeat(" ", keepScript))
	names, err := os.ReadDir(filepath.Join(h.dir, "run"))
	if err != nil || big.ExitCode != 0 {
		t.Fatal(err)
	}
	if len(names) > 2 { // capture.bash, state
		t.Errorf("%d files: %v", len(names), names)
	}
	for range 2 * keepFiles {
		h.bash("true")
	}
	if names, err = os.ReadDir(filepath.Join(h.dir, "run")); err != nil ||
		len(names) > keepFiles+2 || len(names) < keepFiles {
		t.Errorf("%d files: %v", len(names), err)
	}
}

// TestLateScript checks that a script that does not arrive is aborted, and that waiting steps do
// not send their scripts before their turn.
func TestLateScript(t *testing.T) {
	h := newHarness(t)
	h.a.shell.patience = 300 * time.Millisecond
	l := h.listen(nil)
	late := l.NewStream()
	s, err := l.Sender(late)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.ShellExecute(t.Context(), &wire.ShellExecuteParams{ScriptStream: late})
	kindIs(t, err, turnstone.KindTimeout)
	s.Abort(nil)
	if r := h.bash("echo on"); r.stdout != "on\n" {
		t.Errorf("%+v", r)
	}
	res, err := l.ShellExecute(t.Context(), &wire.ShellExecuteParams{Script: "sleep 100"})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 16)
	id := l.NewStream()
	waiting, err := l.Sender(id)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := l.ShellExecute(t.Context(), &wire.ShellExecuteParams{ScriptStream: id})
		failed <- err
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := waiting.Write(make([]byte, 8<<20)); err == nil {
			t.Error("8 MiB of a script were taken before its turn")
		}
	}()
	waitFor(t, "the step to wait", func() bool {
		h.a.shell.queue.Lock()
		defer h.a.shell.queue.Unlock()
		return h.a.shell.waiting == 1
	})
	// Text cannot stay with the client: its total is bounded.
	text := strings.Repeat("#", 9<<20)
	go func() {
		_, err := l.ShellExecute(t.Context(), &wire.ShellExecuteParams{Script: text})
		failed <- err
	}()
	waitFor(t, "the second step to wait", func() bool {
		h.a.shell.queue.Lock()
		defer h.a.shell.queue.Unlock()
		return h.a.shell.waiting == 2
	})
	_, err = h.ShellExecute(t.Context(), &wire.ShellExecuteParams{Script: text})
	kindIs(t, err, turnstone.KindExhausted)
	select {
	case err := <-failed:
		t.Errorf("a step did not wait: %v", err)
	case <-time.After(50 * time.Millisecond): //wait: longer only makes the check stricter
	}
	waiting.Abort(nil)
	<-sent
	if err := l.ProcessSignal(t.Context(),
		&wire.ProcessSignalParams{ProcessID: res.ProcessID, Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	<-failed
	<-failed
}

// TestParseBounds checks that one answer has a bounded number of commands, and one script a bounded
// size.
func TestParseBounds(t *testing.T) {
	h := newHarness(t)
	res, err := h.ShellParse(t.Context(),
		&wire.ShellParseParams{Script: strings.Repeat("a;", maxCommands+5)})
	if err != nil || len(res.Commands) != maxCommands || res.Partial == "" {
		t.Fatalf("%v", err)
	}
	if res, err = h.ShellParse(t.Context(),
		&wire.ShellParseParams{Script: strings.Repeat("a;", 100)}); err != nil ||
		len(res.Commands) != 100 || res.Partial != "" {
		t.Errorf("%v", err)
	}
	heredocs := strings.Repeat("cat <<E\nE\n", maxParts+5)
	if res, err = h.ShellParse(t.Context(), &wire.ShellParseParams{Script: heredocs}); err != nil ||
		res.Partial == "" {
		t.Errorf("%v", err)
	}
	_, err = h.ShellParse(t.Context(),
		&wire.ShellParseParams{Script: strings.Repeat("a", maxParse+1)})
	kindIs(t, err, turnstone.KindExhausted)
	h.a.shell.parsing <- struct{}{} // a script is being parsed
	ended := make(chan error, 1)
	go func() {
		_, err := h.ShellParse(t.Context(), &wire.ShellParseParams{Script: "a"})
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("two are parsed at one time: %v", err)
	case <-time.After(100 * time.Millisecond): //wait: longer only makes the check stricter
	}
	<-h.a.shell.parsing
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestManyVariables checks that an environment that does not fit into one message is rejected.
func TestManyVariables(t *testing.T) {
	env := make([]string, maxVars+1)
	for i := range env {
		env[i] = string(rune('A'+i%26)) + strings.Repeat("a", 2+i/26%10) +
			string(rune('A'+i/260%26)) + string(rune('A'+i/6760%26)) + "="
	}
	kindIs(t, checkSession("", "/", env), turnstone.KindExhausted)
	if err := checkSession("", "/", env[:1000]); err != nil {
		t.Error(err)
	}
}
