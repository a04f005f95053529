package proxy

import (
	"net"
	"sync"

	"turnstone.dev/turnstone/internal/network"
)

// firstBytes is the number of a connection's bytes that are examined to detect the protocol.
const firstBytes = 4096

// An eagerConn reads the first bytes of a connection before the first Read. Only one goroutine may
// read, as for any net.Conn.
type eagerConn struct {
	net.Conn
	first chan struct{} // closed when bytes have come, or none will

	mu  sync.Mutex
	buf []byte
	err error
}

func newEager(c net.Conn) *eagerConn {
	e := &eagerConn{Conn: c, first: make(chan struct{})}
	go func() {
		buf := make([]byte, firstBytes)
		n, err := c.Read(buf)
		e.buf, e.err = buf[:n], err
		close(e.first)
	}()
	return e
}

// Read implements net.Conn.
func (e *eagerConn) Read(p []byte) (int, error) {
	<-e.first
	e.mu.Lock()
	if len(e.buf) > 0 {
		n := copy(p, e.buf)
		e.buf = e.buf[n:]
		e.mu.Unlock()
		return n, nil
	}
	err := e.err
	e.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return e.Conn.Read(p)
}

// peek returns the first bytes. It is called after first, and before any Read.
func (e *eagerConn) peek() []byte { return e.buf }

// more continues to read until want bytes are available, or no more come.
func (e *eagerConn) more(want int) {
	for len(e.buf) < want && e.err == nil {
		buf := make([]byte, firstBytes)
		n, err := e.Conn.Read(buf)
		e.buf, e.err = append(e.buf, buf[:n]...), err
	}
}

// CloseWrite ends the sending side, if the connection can.
func (e *eagerConn) CloseWrite() error { return network.CloseWrite(e.Conn) }

// Reset ends the connection with a reset, if it can.
func (e *eagerConn) Reset() { network.Reset(e.Conn) }
