package forward_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"turnstone.dev/turnstone/internal/forward"
)

// listen returns a listener on loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A freeing is a connection that tells when it is no longer used.
type freeing struct {
	*net.TCPConn
	free func()
}

// Close implements io.Closer.
func (f *freeing) Close() error {
	f.free()
	return f.TCPConn.Close()
}

// TestServe forwards a connection to an echo, with the end of its input, reports one that has no
// other end, and ends all with the context.
func TestServe(t *testing.T) {
	echo := listen(t)
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { defer func() { _ = c.Close() }(); _, _ = io.Copy(c, c) }()
		}
	}()
	none := errors.New("no process listens")
	dials := make(chan error, 3)
	dials <- nil
	dials <- none
	dials <- nil
	freed, refused := make(chan struct{}, 3), make(chan error, 3)
	ctx, cancel := context.WithCancelCause(t.Context())
	l, served := listen(t), make(chan error, 1)
	go func() {
		served <- forward.Serve(ctx, l, 1, func(ctx context.Context) (io.ReadWriteCloser, error) {
			if err := <-dials; err != nil {
				return nil, err
			}
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", echo.Addr().String())
			return &freeing{c.(*net.TCPConn), sync.OnceFunc(func() { freed <- struct{}{} })}, err
		}, func(err error) { refused <- err })
	}()
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c.(*net.TCPConn)
	}

	c := dial()
	_, _ = io.WriteString(c, "all of it")
	_ = c.CloseWrite()
	if text, err := io.ReadAll(c); err != nil || string(text) != "all of it" {
		t.Fatalf("answer %q, error %v", text, err)
	}
	<-freed
	if _, err := io.ReadAll(dial()); err != nil {
		t.Fatalf("a connection without another end: %v", err)
	}
	if err := <-refused; !errors.Is(err, none) {
		t.Fatalf("reported %v", err)
	}
	c = dial()
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := errors.New("the sandbox ended")
	cancel(ended)
	if err := <-served; !errors.Is(err, ended) {
		t.Errorf("Serve returned %v", err)
	}
	<-freed
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is open")
	}
}
