package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/wire"
)

func kindIs(t *testing.T, err error, kind turnstone.Kind) {
	t.Helper()
	if err == nil || turnstone.KindOf(err) != kind {
		t.Errorf("error %v of kind %s, want kind %s", err, turnstone.KindOf(err), kind)
	}
	if err != nil && turnstone.HintOf(err) == "" && kind != turnstone.KindInvalid {
		t.Errorf("error %v has no hint", err)
	}
}

func (h *harness) start(stdin io.Reader, argv ...string) (ran, error) {
	var stdout, stderr bytes.Buffer
	res, err := h.Start(h.t.Context(), wire.ProcessStartParams{Argv: argv, Cwd: h.dir},
		wire.Stdio{In: stdin, Out: &stdout, Err: &stderr})
	return ran{ProcessExit: res.Exit, stdout: stdout.String(), stderr: stderr.String()}, err
}

func TestStart(t *testing.T) {
	h := newHarness(t)
	for _, tt := range []struct {
		name   string
		stdin  io.Reader
		argv   []string
		code   int64
		signal string
		stdout string
		stderr string
	}{
		{"streams", nil, []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, 3, "",
			"out\n", "err\n"},
		{"stdin", strings.NewReader("a\x00\xffb"), []string{"cat"}, 0, "", "a\x00\xffb", ""},
		{"empty stdin", nil, []string{"cat"}, 0, "", "", ""},
		{"stdin not read", strings.NewReader(strings.Repeat("x", 4<<20)), []string{"true"},
			0, "", "", ""},
		{"signal", nil, []string{"sh", "-c", "kill -SEGV $$"}, 128 + 11, "SIGSEGV", "", ""},
		{"directory", nil, []string{"sh", "-c", "test \"$PWD\" = " + h.dir}, 0, "", "", ""},
		{"environment", nil, []string{"sh", "-c", "echo $HOME $TERM"}, 0, "", "/root dumb\n", ""},
		{"default signals", nil, []string{"sh", "-c", "yes | head -1"}, 0, "", "y\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := h.start(tt.stdin, tt.argv...)
			if err != nil {
				t.Fatal(err)
			}
			if r.ExitCode != tt.code || r.Signal != tt.signal || r.stdout != tt.stdout ||
				r.stderr != tt.stderr {
				t.Errorf("got %+v", r)
			}
			if r.Duration <= 0 {
				t.Error("no duration")
			}
		})
	}
}

func TestStartFailures(t *testing.T) {
	h := newHarness(t)
	text := filepath.Join(h.dir, "text")
	for name, mode := range map[string]os.FileMode{"text": 0o644, "odd": 0o755} {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte("hello\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.start(nil, "turnstone-no-such-program")
	kindIs(t, err, turnstone.KindNotFound)
	_, err = h.start(nil, "/nope/nope")
	kindIs(t, err, turnstone.KindNotFound)
	_, err = h.start(nil, text)
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.start(nil, filepath.Join(h.dir, "odd"))
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.start(nil)
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"true"}, Cwd: "rel"},
		wire.Stdio{})
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"true"}, Cwd: text},
		wire.Stdio{})
	kindIs(t, err, turnstone.KindInvalid)
	_, err = h.SandboxConfigure(t.Context(), &wire.SandboxConfigureParams{})
	kindIs(t, err, turnstone.KindInvalid)
	if r, err := h.start(nil, "echo", "still here"); err != nil || r.stdout != "still here\n" {
		t.Errorf("after the failures: %+v %v", r, err)
	}
}

// TestBackgroundHoldsPipes checks that a step ends with its main process; its background processes
// continue, are not blocked, and their output is discarded.
func TestBackgroundHoldsPipes(t *testing.T) {
	h := newHarness(t)
	mark := filepath.Join(h.dir, "mark")
	began := time.Now()
	r := h.bash(`(sleep 0.3; head -c 3000000 /dev/zero; echo late; echo $? >` + mark +
		`; exec sleep 600) & echo $!; echo now`)
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("the step took %v: it waited for its background process", took)
	}
	pid, rest, _ := strings.Cut(r.stdout, "\n")
	if rest != "now\n" || r.ExitCode != 0 {
		t.Errorf("got %+v", r)
	}
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(n, syscall.SIGKILL) }()
	waitFor(t, "the background process to write all it wants", func() bool {
		b, err := os.ReadFile(mark)
		return err == nil && string(b) == "0\n"
	})
	if err := syscall.Kill(n, 0); err != nil {
		t.Errorf("the background process is gone: %v", err)
	}
}

// TestBusyBackground checks that a background process that never stops writing does not keep a step
// from ending.
func TestBusyBackground(t *testing.T) {
	h := newHarness(t)
	mark := filepath.Join(h.dir, "mark")
	r := h.bash(`(yes | head -c 1000; : >` + mark + `; exec yes) & echo $!; until [ -e ` + mark +
		` ]; do sleep 0.05; done; sleep 1`)
	pid, _, _ := strings.Cut(strings.TrimLeft(r.stdout, "y\n"), "\n")
	if n, err := strconv.Atoi(pid); err == nil {
		defer func() { _ = syscall.Kill(n, syscall.SIGKILL) }()
	} else {
		t.Errorf("no pid in %.40q", r.stdout)
	}
	if len(r.stdout) < 100 {
		t.Errorf("only %d bytes came", len(r.stdout))
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// TestKillTree checks that when a caller cancels, the whole tree ends, and the output so far is
// available.
func TestKillTree(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := callWriter{call: func() { cancel(errors.New("out of time")) }}
	res, err := h.Execute(ctx, wire.ShellExecuteParams{Name: "k"},
		"export A=1; (trap '' TERM; echo $$; sleep 100) & sleep 100 | sleep 100",
		wire.Stdio{Out: &out}, nil)
	if err == nil || err.Error() != "out of time" {
		t.Errorf("error %v, want the context's cause", err)
	}
	if !res.Exit.Killed || res.Exit.ExitCode != 137 || res.Exit.Signal != "SIGKILL" {
		t.Errorf("result %+v", res)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatalf("output before the kill: %q", out.String())
	}
	waitFor(t, "the tree to end", func() bool { return syscall.Kill(-pid, 0) == syscall.ESRCH })
	if r := h.bash("echo ${A-unset}"); r.stdout != "unset\n" {
		t.Errorf("the session after a kill: %q", r.stdout)
	}
}

// A callWriter keeps what is written, and calls a function at the end of a line.
type callWriter struct {
	bytes.Buffer
	call func()
}

func (w *callWriter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\n")) {
		defer w.call()
	}
	return w.Buffer.Write(p)
}

type brokenWriter struct{ after int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// TestBrokenWriter checks that a caller that cannot accept the output ends the process.
func TestBrokenWriter(t *testing.T) {
	h := newHarness(t)
	_, err := h.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"yes"}, Cwd: h.dir},
		wire.Stdio{Out: &brokenWriter{1 << 20}})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want the writer's", err)
	}
}

type countWriter struct{ n int64 }

func (c *countWriter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

// TestStreaming checks that output of any size passes in bounded memory.
func TestStreaming(t *testing.T) {
	size := testsize.Of[int64](128<<20, 1<<30)
	h := newHarness(t)
	runtime.GC() // the heap of tests before decides until when this one's may grow
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var out countWriter
	began := time.Now()
	res, err := h.Start(t.Context(), wire.ProcessStartParams{Cwd: h.dir,
		Argv: []string{"head", "-c", strconv.FormatInt(size, 10), "/dev/zero"}},
		wire.Stdio{Out: &out})
	if err != nil || res.Exit.ExitCode != 0 || out.n != size {
		t.Fatalf("%+v %v, %d bytes", res, err, out.n)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.Sys) - int64(before.Sys); grown > 64<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	t.Logf("%.0f MB/s", float64(size)/1e6/time.Since(began).Seconds())
}

// TestSlowReader checks that a reader that stops does not make the agent hold the output, and that
// another call continues meanwhile.
func TestSlowReader(t *testing.T) {
	h := newHarness(t)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := h.Start(t.Context(),
			wire.ProcessStartParams{Argv: []string{"head", "-c", "50000000", "/dev/zero"},
				Cwd: h.dir}, wire.Stdio{Out: w})
		_ = w.Close()
		done <- err
	}()
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if other, err := h.start(nil, "echo", "meanwhile"); err != nil ||
		other.stdout != "meanwhile\n" {
		t.Errorf("%+v %v", other, err)
	}
	n, err := io.Copy(io.Discard, r)
	if err != nil || n != 50000000-1000 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestHostileCapture checks that files that a step leaves in the agent's folder are not trusted.
func TestHostileCapture(t *testing.T) {
	for _, attack := range []string{
		"ln -s /etc/passwd $f",
		"mkfifo $f",
		"head -c 2000000 /dev/zero >$f",
		"printf 'no' >$f",
		"printf '/tmp\\n\\0declare -x A=\"1' >$f",
		"printf 'rel\\n\\0\\0\\0' >$f",
	} {
		h := newHarness(t)
		f := filepath.Join(h.dir, "run", "state")
		h.bash("export A=0; cd /tmp")
		h.bash("f=" + f + "; rm -f $f; " + attack + "; kill -9 $$")
		if r := h.bash("echo $A $PWD"); r.stdout != "0 /tmp\n" {
			t.Errorf("after %s: %q %q", attack, r.stdout, r.stderr)
		}
	}
}

func TestFiles(t *testing.T) {
	h := newHarness(t)
	src := filepath.Join(t.TempDir(), "tree")
	for name, text := range map[string]string{"a": "A", "sub/b": strings.Repeat("b", 1<<20),
		"sub/run": "#!/bin/sh\n"} {
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(src, "sub/run"), 0o755),
		os.Symlink("sub/b", filepath.Join(src, "link"))); err != nil {
		t.Fatal(err)
	}
	put := func(dest string) error {
		r, w := io.Pipe()
		defer func() { _ = r.Close() }()
		go func() { _ = w.CloseWithError(tarfiles.Pack(t.Context(), w, src, "")) }()
		return h.Put(t.Context(), dest, r)
	}
	in := filepath.Join(h.dir, "in")
	if err := put(in + "/"); err != nil { // into a new folder
		t.Fatal(err)
	}
	if err := put(filepath.Join(in, "copy")); err != nil { // under another name
		t.Fatal(err)
	}
	r := h.bash("cd " + in +
		"; find . | sort | tr '\\n' ' '; test -x tree/sub/run && readlink copy/link; cmp " +
		"tree/sub/b copy/link && echo same")
	want := "./copy ./copy/a ./copy/link ./copy/sub ./copy/sub/b ./copy/sub/run ./tree ./tree/a " +
		"./tree/link ./tree/sub ./tree/sub/b ./tree/sub/run sub/b\nsame\n"
	want = strings.Replace(". "+want, "sub/run sub/b", "sub/run sub/b", 1)
	if r.stdout != want {
		t.Errorf("in the sandbox: %q %q, want %q", r.stdout, r.stderr, want)
	}

	out := t.TempDir()
	pr, pw := io.Pipe()
	go func() { _ = pw.CloseWithError(h.Get(t.Context(), filepath.Join(in, "tree"), pw)) }()
	if err := tarfiles.Unpack(t.Context(), pr, out+"/", tarfiles.Any(), tarfiles.Limits{}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(out, "tree/link"))
	if err != nil || len(b) != 1<<20 {
		t.Errorf("%d bytes, %v", len(b), err)
	}

	kindIs(t, h.Get(t.Context(), filepath.Join(h.dir, "nope"), io.Discard), turnstone.KindNotFound)
	kindIs(t, h.Get(t.Context(), "rel", io.Discard), turnstone.KindInvalid)
	kindIs(t, h.Put(t.Context(), "rel", strings.NewReader("")), turnstone.KindInvalid)
	kindIs(t, h.Put(t.Context(), in, strings.NewReader("this is no tar")), turnstone.KindInvalid)
	lost := errors.New("source lost")
	if err := h.Put(t.Context(), in, io.MultiReader(bytes.NewReader(make([]byte, 100)),
		errReader{lost})); !errors.Is(err, lost) {
		t.Errorf("error %v, want the source's", err)
	}
	if st, err := h.SandboxGetStats(t.Context()); err != nil || st.MemoryTotal <= 0 ||
		st.DiskTotal <= 0 || st.Processes <= 0 {
		t.Errorf("stats %+v %v", st, err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
