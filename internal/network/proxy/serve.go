package proxy

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/network"
)

// serveHTTP serves the requests on guest until its end.
func (c *connection) serveHTTP(guest net.Conn, h http.Handler) {
	conn := &closing{Conn: guest, closed: make(chan struct{}), idle: make(chan struct{}),
		abort: make(chan struct{})}
	conn.head.begin()
	l := &oneConn{conn: conn}
	srv := &http.Server{Handler: conn.during(c.checked(h)), ReadHeaderTimeout: headerTime,
		IdleTimeout: idleTime, MaxHeaderBytes: maxRequest, ErrorLog: log.New(io.Discard, "", 0)}
	_ = srv.Serve(l)
	_ = srv.Close()
}

// checked refuses requests to another host than the connection's: the policy's permission, or a
// secret, must not be used for another host.
func (c *connection) checked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Host != "" && network.HostOnly(req.Host) == "" {
			c.refused(fmt.Sprintf("a request whose host cannot be read: %.100q", req.Host))
			http.Error(w, "turnstone: this is not a host", http.StatusBadRequest)
			return
		}
		if host := network.HostOnly(req.Host); c.name != "" && host != c.name {
			c.refused(fmt.Sprintf("a request to %.100q on a connection to %s", host, c.name))
			http.Error(w, "turnstone: this connection is to another host",
				http.StatusMisdirectedRequest)
			return
		}
		if c.request != nil {
			if reason := c.request(req.Host); reason != "" {
				c.refusedFor(network.CanonicalName(network.HostOnly(req.Host)), reason)
				status := http.StatusMisdirectedRequest
				if strings.Contains(reason, "in deny: ") {
					status = http.StatusForbidden
				}
				http.Error(w, "turnstone: refused: "+reason, status)
				return
			}
		}
		if opaque(req) { // the following bytes could not be checked
			c.refused("a tunnel through " + c.host())
			http.Error(w, "turnstone: no tunnels through this connection",
				http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, req)
	})
}

// opaque reports whether unchecked requests may follow a request: tunnels, and HTTP/2 in the clear
// (RFC 9113, section 3.4). A target that is neither a path nor a URL is for a proxy, too.
func opaque(req *http.Request) bool {
	return strings.EqualFold(req.Method, http.MethodConnect) || req.ProtoMajor != 1 ||
		req.URL.Opaque != ""
}

// A oneConn is a listener with a single connection. Its second Accept waits for that connection's
// end.
type oneConn struct {
	conn *closing
	once sync.Once
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.conn })
	if c != nil {
		return c, nil
	}
	<-l.conn.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *oneConn) Close() error { return nil }

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// A closing connection controls the report of its end. A guest that has closed its sending side may
// still wait for the answer, but net/http treats the end of its input as the end of the connection:
// closing reports the end only when no request is being answered.
type closing struct {
	net.Conn
	head   headCounter
	once   sync.Once
	closed chan struct{}

	mu        sync.Mutex
	answering bool
	idle      chan struct{} // closed when the current request is answered
	aborted   bool          // reads must end at once
	abort     chan struct{} // closed when aborted becomes true
}

// halfTime bounds how long an answer may take after a guest has closed its sending side.
const halfTime = 5 * time.Minute

// Read implements net.Conn.
func (c *closing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.head.saw(p[:n]) != nil {
		c.tooMany()
		return 0, io.EOF
	}
	if n > 0 || !errors.Is(err, io.EOF) {
		return n, err
	}
	c.mu.Lock()
	// While a request is handled, only net/http reads single bytes, to detect the end. It begins
	// before the handler does, and before the handler knows that the body has ended.
	answering, idle, abort := c.answering || len(p) == 1 && c.head.complete(), c.idle, c.abort
	c.mu.Unlock()
	if answering {
		select {
		case <-idle:
		case <-abort:
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
		case <-time.After(halfTime):
		}
	}
	return 0, err
}

// SetReadDeadline implements net.Conn. With a deadline in the past net/http cancels its detection
// of the end: after it has answered a request, also a request that reached no handler, and for a
// handler that takes over the connection.
func (c *closing) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	past := !t.IsZero() && !t.After(time.Now())
	switch {
	case past && !c.aborted:
		close(c.abort)
	case !past && c.aborted:
		c.abort = make(chan struct{})
	}
	c.aborted = past
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// tooMany answers a request with too many headers, which net/http limits only by bytes. It
// continues to read the guest's bytes for a while, because a reset would discard the answer.
func (c *closing) tooMany() {
	_, _ = io.WriteString(c.Conn,
		"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: "+
			"0\r\n\r\n")
	_ = network.CloseWrite(c.Conn)
	_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, 4<<20))
}

// during marks when h answers a request. Until the body was read, an end is reported at once.
func (c *closing) during(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.head.end()
		begin := func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.answering = true
		}
		if req.Body == nil || req.Body == http.NoBody {
			begin()
		} else {
			req.Body = &finishing{req.Body, begin}
		}
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.head.begin()
			c.answering = false
			close(c.idle)
			c.idle = make(chan struct{})
		}()
		h.ServeHTTP(w, req)
	})
}

// A finishing body reports when it has been read.
type finishing struct {
	io.ReadCloser
	finished func()
}

// Read implements io.Reader.
func (f *finishing) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		f.finished()
	}
	return n, err
}

// Close implements net.Conn.
func (c *closing) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
