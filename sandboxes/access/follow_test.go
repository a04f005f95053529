package access_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/sandboxes/access"
	"turnstone.dev/turnstone/wire"
)

// far is an agent on this machine behind a relay that loses connections.
type far struct {
	t *testing.T
	a *agent.Agent

	mu     sync.Mutex
	dials  int
	carry  func(dial int) int64 // bytes of both directions; 0: any
	silent bool                 // the agent does not learn of a loss
	late   bool                 // a connection was refused
	open   []net.Conn
	wg     sync.WaitGroup
}

func newFar(t *testing.T, carry func(dial int) int64) *far {
	t.Helper()
	a, err := agent.New(agent.Options{RunDir: t.TempDir(), Cwd: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	f := &far{t: t, a: a, carry: carry}
	t.Cleanup(func() {
		f.mu.Lock()
		for _, c := range f.open {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *far) access() *access.Access {
	return &access.Access{Open: f.dial, Linger: time.Minute,
		Info: func(context.Context, turnstone.SandboxID) (access.Sandbox, error) {
			return access.Sandbox{}, nil
		}}
}

func (f *far) dial(context.Context, turnstone.SandboxID) (io.ReadWriteCloser, error) {
	near, relayNear := net.Pipe()
	relayFar, end := net.Pipe()
	f.mu.Lock()
	f.dials++
	left := f.carry(f.dials)
	f.open = append(f.open, relayNear, relayFar)
	f.mu.Unlock()
	f.a.ServeConn(end)
	b := &budget{left: left, any: left == 0}
	cut := func() {
		_ = relayNear.Close()
		if !f.silent {
			_ = relayFar.Close()
		}
	}
	copyUntil := func(to, from net.Conn) {
		defer cut()
		buf := make([]byte, 4096)
		for {
			n, err := from.Read(buf)
			if _, werr := to.Write(buf[:b.take(n)]); err != nil || werr != nil || b.spent() {
				return
			}
		}
	}
	f.wg.Go(func() { copyUntil(relayFar, relayNear) })
	f.wg.Go(func() { copyUntil(relayNear, relayFar) })
	return near, nil
}

// A budget is the number of bytes that a relay carries.
type budget struct {
	mu   sync.Mutex
	left int64
	any  bool
}

func (b *budget) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.any {
		return n
	}
	n = int(min(int64(n), b.left))
	b.left -= int64(n)
	return n
}

func (b *budget) spent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.any && b.left == 0
}

// TestExecOverLostConnections sends much data through a command while its connections are lost at
// any byte: its input and both outputs arrive once and whole.
func TestExecOverLostConnections(t *testing.T) {
	const size = 12 << 20
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	for _, silent := range []bool{false, true} {
		f := newFar(t, func(dial int) int64 {
			if dial < 5 {
				return 200 + rand.Int64N(4<<20)
			}
			return 0
		})
		f.silent = silent
		var out, errs bytes.Buffer
		exit, err := f.access().Exec(t.Context(), "sb", access.Command{
			Argv:  []string{"sh", "-c", "tee /dev/stderr; exit 7"},
			Stdin: bytes.NewReader(data), Stdout: &out, Stderr: &errs})
		if err != nil || exit.ExitCode != 7 {
			t.Fatalf("silent %t: %+v %v after %d connections", silent, exit, err, f.dials)
		}
		for name, got := range map[string][]byte{"stdout": out.Bytes(), "stderr": errs.Bytes()} {
			if sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("silent %t: %s has %d bytes of %d, or other ones", silent, name,
					len(got), size)
			}
		}
		if f.dials < 5 {
			t.Errorf("%d connections", f.dials)
		}
	}
}

// TestStartIsLost loses the first connection before the answer to the start: the command runs once.
func TestStartIsLost(t *testing.T) {
	for carry := int64(1); carry < 700; carry += 23 {
		f := newFar(t, func(dial int) int64 {
			if dial == 1 {
				return carry
			}
			return 0
		})
		dir := t.TempDir()
		var out bytes.Buffer
		exit, err := f.access().Exec(t.Context(), "sb", access.Command{
			Argv: []string{"sh", "-c", "echo x >>" + dir + "/ran; cat " + dir + "/ran"}, Stdout: &out})
		if err != nil || exit.ExitCode != 0 || out.String() != "x\n" {
			t.Fatalf("%d bytes: %+v %q %v", carry, exit, out.String(), err)
		}
	}
}

// TestSignalIsLost loses the connection while a signal is on its way: the command gets it. The signal
// is there before the command has started. A command of a process that ignores SIGINT, as one in the
// background of a shell does, would ignore that, too.
func TestSignalIsLost(t *testing.T) {
	for carry := int64(300); carry < 1500; carry += 77 {
		f := newFar(t, func(dial int) int64 {
			if dial == 1 {
				return carry
			}
			return 0
		})
		signals := make(chan string, 1)
		signals <- "TERM"
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		exit, err := f.access().Exec(ctx, "sb", access.Command{Signals: signals, Stdout: &out,
			Argv: []string{"sh", "-c", "exec sleep 1000"}})
		cancel()
		if err != nil || exit.Signal != "SIGTERM" {
			t.Fatalf("%d bytes: %+v %q %v after %d connections", carry, exit, out.String(), err,
				f.dials)
		}
	}
}

// TestAnswerIsLate: after a lost connection, another one is tried if one does not answer in time.
func TestAnswerIsLate(t *testing.T) {
	f := newFar(t, func(dial int) int64 {
		if dial == 1 {
			return 1000
		}
		return 0
	})
	a := f.access()
	a.Open = func(ctx context.Context, id turnstone.SandboxID) (io.ReadWriteCloser, error) {
		f.mu.Lock()
		n := f.dials
		f.mu.Unlock()
		if n == 1 && !f.late {
			f.late = true
			return nil, turnstone.Errorf("host.call", turnstone.KindTimeout, "the answer", "is late")
		}
		return f.dial(ctx, id)
	}
	var out bytes.Buffer
	exit, err := a.Exec(t.Context(), "sb", access.Command{
		Argv: []string{"sh", "-c", "seq 1 2000; exit 7"}, Stdout: &out})
	if err != nil || exit.ExitCode != 7 || !strings.HasSuffix(out.String(), "\n2000\n") || !f.late {
		t.Errorf("%+v %v, %d bytes", exit, err, out.Len())
	}
}

// TestClientIsGone kills a command whose client does not come back, and which waits for its output
// to be read.
func TestClientIsGone(t *testing.T) {
	f := newFar(t, func(int) int64 { return 0 })
	stream, err := f.dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(stream)
	if _, err := c.ProcessStart(t.Context(), &wire.ProcessStartParams{ProcessID: "yes",
		Argv: []string{"yes"}, Linger: 50}); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	var exit wire.ProcessExit
	for exit, err = f.access().Attach(t.Context(), "sb", "yes", nil, nil, nil); err != nil; {
		t.Fatal(err)
	}
	if !exit.Killed {
		t.Errorf("%+v", exit)
	}
}

// TestSilentCommand loses the connection of a command that has said nothing for longer than it and
// its client wait for each other: that time was no time without a connection.
func TestSilentCommand(t *testing.T) {
	f := newFar(t, func(int) int64 { return 0 })
	a, dir := f.access(), t.TempDir()
	began, over := filepath.Join(dir, "began"), filepath.Join(dir, "over")
	a.Linger = 5 * time.Second
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for {
			if _, err := os.Stat(began); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(a.Linger + 500*time.Millisecond)
		f.mu.Lock()
		for _, c := range f.open {
			_ = c.Close()
		}
		f.mu.Unlock()
		if err := os.WriteFile(over, nil, 0o600); err != nil {
			t.Error(err)
		}
	}()
	var out bytes.Buffer
	exit, err := a.Exec(t.Context(), "sb", access.Command{Argv: []string{"sh", "-c",
		"touch " + began + "; until [ -e " + over + " ]; do sleep 0.1; done; echo done; exit 3"},
		Stdout: &out})
	<-lost
	if err != nil || exit.ExitCode != 3 || out.String() != "done\n" || f.dials < 2 {
		t.Errorf("%+v %q %v after %d connections", exit, out.String(), err, f.dials)
	}
}

// TestLingerIsBounded refuses contradictions.
func TestLingerIsBounded(t *testing.T) {
	f := newFar(t, func(int) int64 { return 0 })
	stream, err := f.dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(stream)
	defer func() { _ = c.Close() }()
	for _, p := range []wire.ProcessStartParams{{Linger: -1}, {Linger: 86_400_001},
		{Linger: 1, Detach: true}, {Linger: 1, KillOnDisconnect: true}} {
		p.Argv = []string{"true"}
		if _, err := c.ProcessStart(t.Context(), &p); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := c.ProcessStart(t.Context(), &wire.ProcessStartParams{ProcessID: "cat",
		Argv: []string{"cat"}, Stdin: true, Linger: 1000}); err != nil {
		t.Fatal(err)
	}
	_, err = c.ProcessAttach(t.Context(), &wire.ProcessAttachParams{ProcessID: "cat",
		StdinStream: c.NewStream()})
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("standard input without takeOver: %v", err)
	}
}

// TestCanceledExec kills a command when its caller gives up, also while no connection is there.
func TestCanceledExec(t *testing.T) {
	f := newFar(t, func(int) int64 { return 0 })
	a := f.access()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	out := writerFunc(func(p []byte) (int, error) { cancel(enough); return len(p), nil })
	_, err := a.Exec(ctx, "sb", access.Command{
		Argv: []string{"sh", "-c", "echo started; exec sleep 1000"}, Stdout: out})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	all, err := a.Processes(t.Context(), "sb")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Exit == nil && strings.Contains(strings.Join(p.Argv, " "), "sleep 1000") {
			t.Errorf("%+v runs", p)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
