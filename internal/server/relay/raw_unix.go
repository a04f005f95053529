//go:build unix

package relay

import (
	"io"
	"net"
	"os"
	"syscall"
)

// A rawReader reads a socket, and has a buffer only while the socket has bytes: it takes one for
// each attempt, and returns it when the attempt would block. An attempt costs no more than the read
// that package net begins with.
type rawReader struct {
	conn    syscall.RawConn
	attempt func(fd uintptr) (done bool)
	b       *buffer
	n       int
	err     error
}

// newRawReader returns nil if c is no plain socket.
func newRawReader(c net.Conn) reader {
	var raw syscall.RawConn
	var err error
	switch c := c.(type) {
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	}
	if raw == nil || err != nil {
		return nil
	}
	r := &rawReader{conn: raw}
	r.attempt = r.read
	return r
}

func (r *rawReader) read(fd uintptr) bool {
	r.b = buffers.Get().(*buffer)
	for {
		r.n, r.err = syscall.Read(int(fd), r.b[:])
		if r.err != syscall.EINTR {
			break
		}
	}
	if r.err == syscall.EAGAIN {
		r.release()
		return false
	}
	return true
}

func (r *rawReader) next() ([]byte, error) {
	r.release()
	if err := r.conn.Read(r.attempt); err != nil {
		return nil, err
	}
	switch {
	case r.err != nil:
		err := os.NewSyscallError("read", r.err)
		r.release()
		return nil, err
	case r.n == 0:
		r.release()
		return nil, io.EOF
	}
	return r.b[:r.n], nil
}

func (r *rawReader) release() {
	if r.b != nil {
		buffers.Put(r.b)
		r.b = nil
	}
}

// early reports whether a socket has bytes that nobody has read.
func early(c net.Conn) (yes bool) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = err == nil && n > 0
	})
	return yes
}
