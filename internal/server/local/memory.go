package local

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// A Memory is a listener inside of this process. Its connections are pairs of sockets, so they
// have what a relay uses of a socket: half-close, and waiting without a buffer. Its methods are
// safe for concurrent use.
type Memory struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// NewMemory returns a listener.
func NewMemory() *Memory {
	return &Memory{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial connects to the listener. The error is of kind Unavailable after Close.
func (m *Memory) Dial(ctx context.Context) (net.Conn, error) {
	near, far, err := pair()
	if err != nil {
		return nil, turnstone.NewError("server.connect", turnstone.KindUnavailable, "", err)
	}
	select {
	case m.conns <- far:
		return near, nil
	case <-m.done:
		err = turnstone.Errorf("server.connect", turnstone.KindUnavailable, "the server", "ends")
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = near.Close(), far.Close()
	return nil, err
}

// Accept implements net.Listener.
func (m *Memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections stay open.
func (m *Memory) Close() error {
	m.once.Do(func() { close(m.done) })
	return nil
}

// Addr implements net.Listener.
func (m *Memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// pair returns the two ends of a connection.
func pair() (net.Conn, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	a, errA := conn(fds[0])
	b, errB := conn(fds[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, c := range []net.Conn{a, b} {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return a, b, nil
}

// conn takes a descriptor over.
func conn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer func() { _ = f.Close() }() // FileConn duplicates it
	return net.FileConn(f)
}
