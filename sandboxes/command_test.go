package sandboxes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/ownsocket"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/wire"
)

// held returns a store with a sandbox whose agent and holder are this process. cut bounds the bytes
// that a connection delivers before it breaks; 0: no bound.
func held(t *testing.T) (s *Store, id turnstone.SandboxID, cut *atomic.Int64) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, id, cut = NewStore(t.TempDir()), turnstone.NewSandboxID(),
		new(atomic.Int64)
	dir := s.path(id)
	check(os.MkdirAll(dir, 0o700))
	lock, err := statedir.TryAcquire(filepath.Join(dir, lockFile))
	check(err)
	t.Cleanup(lock.Release)
	self, err := thisProcess()
	check(err)
	check(writeInfo(dir, Info{ID: id, State: StateReady, Image: "test",
		Shape: turnstone.DefaultShape(), Holder: self}))
	a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir(), Keep: 64 << 20})
	check(err)
	t.Cleanup(func() { _ = a.Close() })
	m, err := sandboxtest.New(func(stream wire.LinkStream) { a.ServeConn(stream) })
	check(err)
	t.Cleanup(func() { _ = m.Close() })
	l, err := ownsocket.Listen(dir, socketFile)
	check(err)
	r := newRelay(l, func() (wire.LinkStream, error) {
		stream, err := m.Connect()
		if n := cut.Load(); n > 0 && err == nil {
			stream = &cutStream{LinkStream: stream, left: n}
		}
		return stream, err
	}, slog.New(slog.DiscardHandler))
	t.Cleanup(r.close)
	return s, id, cut
}

// cutStream fails after this number of bytes.
type cutStream struct {
	wire.LinkStream
	left int64
}

func (c *cutStream) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, net.ErrClosed
	}
	n, err := c.LinkStream.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// TestAttachAgain: a process's output arrives once and complete, however often the connection is
// lost.
func TestAttachAgain(t *testing.T) {
	s, id, cut := held(t)
	const lines = 100_000
	process, err := s.StartDetached(t.Context(), id, Command{Argv: []string{"sh", "-c",
		fmt.Sprintf("seq %d; echo errors >&2; exit 3", lines)}})
	if err != nil {
		t.Fatal(err)
	}
	cut.Store(150_000)
	var out, errs bytes.Buffer
	exit, err := s.Attach(t.Context(), id, process, &out, &errs,
		func(stream wire.ProcessStream,
			n int64) {
			t.Errorf("%d bytes of %s were lost", n, stream)
		})
	if err != nil || exit.ExitCode != 3 || errs.String() != "errors\n" {
		t.Errorf("%+v, %v, %q", exit, err, errs.String())
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != lines || got[0] != "1" || got[lines-1] != fmt.Sprint(lines) {
		t.Errorf("%d lines, of %d", len(got), lines)
	}
	for n, line := range got {
		if line != fmt.Sprint(n+1) {
			t.Fatalf("line %d is %q", n+1, line)
		}
	}
	// A connection that delivers nothing is abandoned in the end.
	cut.Store(1)
	_, err = s.Attach(t.Context(), id, process, io.Discard, io.Discard, nil)
	if turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("%v", err)
	}
}

// TestExecLosesConnection: the command is killed, and the error says so.
func TestExecLosesConnection(t *testing.T) {
	s, id, cut := held(t)
	cut.Store(3000)
	var out bytes.Buffer
	_, err := s.Exec(t.Context(), id,
		Command{Argv: []string{"sh", "-c",
			"i=0; while :; do echo 0123456789012345678901234567890123456789; sleep 0.002; done"},
			Stdout: &out})
	if turnstone.KindOf(err) != turnstone.KindDead ||
		!strings.Contains(err.Error(), "connection to the sandbox was lost") ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	if out.Len() == 0 {
		t.Error("nothing came")
	}
}

func TestExec(t *testing.T) {
	s, id, _ := held(t)
	var out, errs bytes.Buffer
	exit, err := s.Exec(t.Context(), id,
		Command{Argv: []string{"sh", "-c", "cat; echo $A; echo err >&2; exit 4"},
			Env: []string{"A=b"}, Stdin: strings.NewReader("in "), Stdout: &out, Stderr: &errs})
	if err != nil || exit.ExitCode != 4 || out.String() != "in b\n" || errs.String() != "err\n" {
		t.Errorf("%+v, %v, %q, %q", exit, err, out.String(), errs.String())
	}
	// The end is requested.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if _, err := s.Exec(ctx, id, Command{Argv: []string{"sleep", "1000"}}); err == nil ||
		ctx.Err() == nil {
		t.Errorf("%v", err)
	}
	// A signal and a terminal's size arrive.
	signals, sizes := make(chan string, 1), make(chan wire.ProcessTerminal, 1)
	sizes <- wire.ProcessTerminal{Columns: 77, Rows: 33}
	out.Reset()
	exit, err = s.Exec(t.Context(), id,
		Command{Argv: []string{"sh", "-c",
			"until [ \"$(stty size)\" = '33 77' ]; do sleep 0.05; done; echo sized; sleep 1000"},
			Terminal: &wire.ProcessTerminal{Columns: 80, Rows: 24}, Resized: resend(t.Context(), sizes),
			Signals: signals,
			Stdout: writerFunc(func(p []byte) (int, error) {
				if bytes.Contains(p, []byte("sized")) {
					signals <- "TERM"
				}
				return out.Write(p)
			})})
	if err != nil || exit.ExitCode != 143 {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		all, err := s.Processes(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		n := slices.IndexFunc(all, func(p wire.ProcessProcessInfo) bool { return p.Exit == nil })
		if n < 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v runs", all[n].Argv)
		}
	}
}

// resend repeats a size until it has an effect: a size before the process's start has none.
func resend(ctx context.Context, sizes chan wire.ProcessTerminal) <-chan wire.ProcessTerminal {
	again := make(chan wire.ProcessTerminal)
	size := <-sizes
	go func() {
		for {
			select {
			case again <- size:
			case <-ctx.Done():
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return again
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCopy(t *testing.T) {
	s, id, _ := held(t)
	host, guest := t.TempDir(), t.TempDir()
	data := bytes.Repeat([]byte("0123456789"), 300_000)
	if err := s.WriteFile(t.Context(), id, guest+"/file", bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := s.ReadFile(t.Context(), id, guest+"/file", &got); err != nil ||
		!bytes.Equal(got.Bytes(), data) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	err := s.Download(t.Context(), id, guest+"/file", host+"/file",
		func(what string) { t.Error(what) })
	if err != nil {
		t.Error(err)
	}
	if err := s.Upload(t.Context(), id, host+"/file", guest+"/again"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(guest + "/again"); err != nil || !bytes.Equal(b, data) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	fails := fmt.Errorf("no more")
	err = s.ReadFile(t.Context(), id, guest+"/file",
		writerFunc(func([]byte) (int, error) { return 0, fails }))
	if err != fails {
		t.Errorf("a writer that fails: %v", err)
	}
	err = s.WriteFile(t.Context(), id, guest+"/half",
		io.MultiReader(strings.NewReader("x"), errReader{fails}))
	if err == nil {
		t.Error("a reader that fails: no error")
	}
	if _, err := os.Stat(guest + "/half"); err == nil {
		t.Error("half a file is there")
	}
	for _, err := range []error{
		s.Upload(t.Context(), id, host+"/none", guest+"/x"),
		s.Download(t.Context(), id, guest+"/none", host+"/x", nil),
		s.ReadFile(t.Context(), id, guest+"/none", io.Discard),
	} {
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%v", err)
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
