package remote

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// greetedTime is how long a connection that was greeted waits for its first call.
const greetedTime = time.Second

// greet asks a plain HTTP port of this machine who it is, before it gets a token or a name: a port
// that speaks TLS would get them unencrypted. The answer itself says nothing about trust. The first
// call continues on the same connection.
func (s *Server) greet(ctx context.Context) error {
	if s.o.Address.socket != "" || s.o.Address.base.Scheme != "http" || s.greeted.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.o.Address.control()+"/healthz", nil)
	if err != nil {
		return err
	}
	address := r.URL.Host
	if r.URL.Port() == "" {
		address = net.JoinHostPort(r.URL.Hostname(), "80")
	}
	conn, err := s.connect(ctx, "tcp", address)
	if err != nil {
		return s.unreached(err)
	}
	stays, err := s.hello(ctx, conn, r)
	if err != nil || !stays || !s.waiting.put(conn) {
		_ = conn.Close()
	}
	if err == nil {
		s.greeted.Store(true)
	}
	return err
}

// hello greets a connection, and reports whether it can be used further.
func (s *Server) hello(ctx context.Context, conn net.Conn, r *http.Request) (stays bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReader(io.LimitReader(conn, maxGreeting))
	if err = r.Write(conn); err != nil {
		return false, s.unreached(err)
	}
	a, err := http.ReadResponse(in, r)
	if err != nil {
		// a TLS server that answers with an alert: its type, and the version
		if strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`) {
			return false, s.secure()
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return false, s.unreached(err)
	}
	text, err := io.ReadAll(a.Body)
	_ = a.Body.Close()
	if a.StatusCode == http.StatusBadRequest && strings.Contains(string(text), "HTTPS") {
		return false, s.secure()
	}
	return err == nil && !a.Close && a.StatusCode == http.StatusOK && in.Buffered() == 0 && stop(), nil
}

// maxGreeting bounds what is read of an answer to greet, in bytes.
const maxGreeting = 4 << 10

// secure returns the error for a plain HTTP address whose port speaks TLS.
func (s *Server) secure() error {
	return turnstone.Errorf("host.connect", turnstone.KindInvalid, s.o.Address.String(),
		"speaks TLS, and nothing was sent to it").
		WithHint("write https:// and the name of its certificate in the address")
}

// A waiting has a connection that was greeted, for the next one to dial. It is safe for concurrent
// use.
type waiting struct {
	mu   sync.Mutex
	conn net.Conn // nil: there is none
	end  *time.Timer
	over bool // it takes none any more
}

// put keeps a connection for a short time, and reports whether it does.
func (w *waiting) put(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || w.conn != nil {
		return false
	}
	w.conn = c
	w.end = time.AfterFunc(greetedTime, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.conn == c { // else it is in use
			w.conn = nil
			_ = c.Close()
		}
	})
	return true
}

// take returns the connection, or nil.
func (w *waiting) take() net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.conn
	if w.conn = nil; c != nil {
		w.end.Stop()
	}
	return c
}

// close ends the connection.
func (w *waiting) close() {
	c := w.take()
	if c != nil {
		_ = c.Close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}
