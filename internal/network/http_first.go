package network

import (
	"net"
	"net/netip"
	"strings"
	"sync"
)

// firstBytes is how much of a connection is looked at to tell what is spoken on it.
const firstBytes = 4096

// An eagerConn reads the first bytes of a connection before anybody asks for them.
// Reads are those of one goroutine, as of any net.Conn.
type eagerConn struct {
	net.Conn
	first chan struct{} // closed when something has come, or nothing will

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

// peek returns what came first. It is called after first, and before any Read.
func (e *eagerConn) peek() []byte { return e.buf }

// more reads on until want bytes are there, or no more come.
func (e *eagerConn) more(want int) {
	for len(e.buf) < want && e.err == nil {
		buf := make([]byte, firstBytes)
		n, err := e.Conn.Read(buf)
		e.buf, e.err = append(e.buf, buf[:n]...), err
	}
}

// CloseWrite ends what is sent, where the connection can.
func (e *eagerConn) CloseWrite() error { return closeWrite(e.Conn) }

// Reset ends the connection with a reset, where it can.
func (e *eagerConn) Reset() { reset(e.Conn) }

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// bareName is a host's name as it is compared: lower case, without a final dot.
func bareName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// hostOnly is the host of a request's Host header, as it is compared; "" when it is not a host with
// or without a port: what comes behind could be the host for another reader.
func hostOnly(host string) string {
	name, port, _ := strings.Cut(host, ":")
	if inner, ok := strings.CutPrefix(host, "["); ok {
		var rest string
		var closed, colon bool
		name, rest, closed = strings.Cut(inner, "]")
		port, colon = strings.CutPrefix(rest, ":")
		if a, err := netip.ParseAddr(name); err != nil || !a.Is6() || a.Zone() != "" || !closed || rest != "" && !colon {
			return ""
		}
	} else if strings.ContainsFunc(name, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && !strings.ContainsRune(".-_", r)
	}) {
		return ""
	}
	if strings.Trim(port, "0123456789") != "" || len(port) > 5 {
		return ""
	}
	return bareName(name)
}
