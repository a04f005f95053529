package cdp

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"

	"turnstone.dev/turnstone/wire"
)

// Statuses of closing frames (RFC 6455, 7.4.1, and its registry).
const (
	goingAway     = 1001
	invalidData   = 1007
	tryAgainLater = 1013
)

// A patient is a connection whose writes fail after a limited time without progress, counted for
// each piece.
type patient struct {
	net.Conn
	buffered *bufio.Reader // data that was read before the upgrade; may be nil
	limit    atomic.Int64  // nanoseconds
}

func newPatient(c net.Conn, buffered *bufio.Reader, limit time.Duration) *patient {
	p := &patient{Conn: c, buffered: buffered}
	p.limit.Store(int64(limit))
	return p
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	if p.buffered != nil {
		if p.buffered.Buffered() > 0 {
			return p.buffered.Read(b[:min(len(b), p.buffered.Buffered())])
		}
		p.buffered = nil
	}
	return p.Conn.Read(b)
}

// piece is the number of bytes written under the same deadline.
const piece = 64 << 10

// Write implements io.Writer.
func (p *patient) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		if err := p.SetWriteDeadline(time.Now().Add(time.Duration(p.limit.Load()))); err != nil {
			return done, err
		}
		n, err := p.Conn.Write(b[done:min(len(b), done+piece)])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// hurry limits the time of pending and later writes.
func (p *patient) hurry(limit time.Duration) {
	p.limit.Store(int64(limit))
	_ = p.SetWriteDeadline(time.Now().Add(limit))
}

// A socket is a WebSocket whose client passed all checks.
type socket struct {
	*wire.Frames
	conn *patient
	gone sync.Once
}

// upgrade upgrades a request to a WebSocket and passes it to serve. It answers rejected requests.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, serve func(*socket)) {
	select {
	case s.slots <- struct{}{}:
	default:
		http.Error(w, "the server has reached its limit of connections",
			http.StatusServiceUnavailable)
		return
	}
	defer func() { <-s.slots }()
	var up ws.HTTPUpgrader
	conn, rw, _, err := up.Upgrade(r, w)
	if err != nil {
		return // the client has been told
	}
	p := newPatient(conn, rw.Reader, s.writeTime)
	c := &socket{Frames: wire.NewFrames(p, false), conn: p}
	s.mu.Lock()
	closing := s.sockets == nil
	if !closing {
		s.sockets[c] = struct{}{}
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if closing {
		c.leave(goingAway, "the server is shutting down")
		return
	}
	defer s.wg.Done()
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sockets, c)
	}()
	serve(c)
}

// leave ends the connection and sends the client the reason, if the client still reads. Only the
// first reason is sent. Code 0 answers the client's own closing frame.
func (c *socket) leave(code int, reason string) {
	c.gone.Do(func() {
		c.conn.hurry(farewellTime) // also frees the write lock from a blocked write
		var why error
		if code != 0 {
			why = &wire.ProtocolError{Code: code, Reason: reason}
		}
		_ = c.Farewell(why)
		_ = c.conn.Close()
	})
}

// quit is leave after a failed read from the client or write to the client.
func (s *Server) quit(c *socket, err error) {
	var broken *wire.ProtocolError
	var closed *wire.ClosedError
	switch {
	case errors.As(err, &broken):
		s.opt.Log.Info("a client violated the protocol and was disconnected",
			"reason", broken.Reason)
		c.leave(broken.Code, broken.Reason)
	case errors.As(err, &closed), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		c.leave(0, "")
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.opt.Log.Info("a client accepted no data for too long and was disconnected",
			"limit", s.writeTime)
		c.leave(int(ws.StatusPolicyViolation),
			"the client accepted no data for "+s.writeTime.String())
	default:
		c.leave(goingAway, err.Error())
	}
}
