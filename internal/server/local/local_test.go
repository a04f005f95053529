package local

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/statedir"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

var quiet = slog.New(slog.DiscardHandler)

// TestListen: a socket that an ended process left is replaced; a living one and another file are
// not.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := Listen(t.Context(), path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), path, quiet); err == nil ||
		!strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener: %v", err)
	}
	own, ok := l.(*own)
	if !ok {
		t.Fatalf("%T", l)
	}
	own.Listener.(*net.UnixListener).SetUnlinkOnClose(false) // as after kill -9
	_ = l.Close()
	l, err = Listen(t.Context(), path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []net.Conn{c, s} {
		if uid, err := UID(end); err != nil || uid != os.Geteuid() {
			t.Errorf("the other end is user %d, %v", uid, err)
		}
		_ = end.Close()
	}
	_ = l.Close()

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{file, filepath.Join(dir, strings.Repeat("x", 120)),
		filepath.Join(dir, "none", "s")} {
		if _, err := Listen(t.Context(), bad, quiet); turnstone.KindOf(err) !=
			turnstone.KindUnavailable {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// TestUIDOfTCP: only a unix connection says who has its other end.
func TestUIDOfTCP(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if _, err := UID(a); err == nil {
		t.Error("a pipe has a user")
	}
	if CheckOwner(a) == nil {
		t.Error("a pipe belongs to this user")
	}
}

// TestMemory: connections are sockets with half-close, and outlive the listener.
func TestMemory(t *testing.T) {
	m := NewMemory()
	accepted := make(chan net.Conn)
	go func() {
		c, _ := m.Accept()
		accepted <- c
	}()
	c, err := m.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := <-accepted
	_ = m.Close()
	if _, err := m.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
	if _, err := io.WriteString(c, "ask"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(s); err != nil || string(b) != "ask" {
		t.Errorf("%q, %v", b, err)
	}
	_, _ = io.WriteString(s, "answer")
	_ = s.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "answer" {
		t.Errorf("%q, %v", b, err)
	}
	_ = c.Close()
}

// TestListenHint: the hint is about what failed.
func TestListenHint(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for address, want := range map[string]string{l.Addr().String(): "end the other process",
		"192.0.2.1:0": "an address of this machine"} {
		if _, err := net.Listen("tcp", address); !strings.HasPrefix(ListenHint(err, "x"), want) &&
			!strings.HasPrefix(ListenHint(err, "x"), "use "+want) {
			t.Errorf("%v: %s", err, ListenHint(err, "x"))
		}
	}
	err = &net.OpError{Err: os.NewSyscallError("bind", syscall.EACCES)}
	if got := ListenHint(err, "listen.address"); !strings.Contains(got, "above 1023 in listen.address") {
		t.Error(got)
	}
}

// TestLock: a role is taken once; another role is free.
func TestLock(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	l, err := Lock(dir, "node")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir, "node"); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.HasPrefix(turnstone.HintOf(err), "end the other server, or ") {
		t.Errorf("twice: %v", err)
	}
	sock, err := Listen(t.Context(), dir.Path("server.sock"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir, "node")
	if want := fmt.Sprintf("(kill %d)", os.Getpid()); !strings.Contains(turnstone.HintOf(err), want) {
		t.Errorf("the hint %q has no %q", turnstone.HintOf(err), want)
	}
	sock.Close()
	other, err := Lock(dir, "controller")
	if err != nil {
		t.Fatal(err)
	}
	other.Release()
	l.Release()
	if l, err = Lock(dir, "node"); err != nil {
		t.Fatal(err)
	}
	l.Release()
}
