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

// A patient is a connection on which writing may take no bytes for a limited time
// only, counted for each piece.
type patient struct {
	net.Conn
	buffered *bufio.Reader // what came before it was ours; may be nil
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

// piece is what is written under one deadline, in bytes.
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

// hurry makes what is being written, and all that is written later, take no
// longer than limit.
func (p *patient) hurry(limit time.Duration) {
	p.limit.Store(int64(limit))
	_ = p.SetWriteDeadline(time.Now().Add(limit))
}

// A socket is one WebSocket: a client that passed all checks.
type socket struct {
	*wire.Frames
	conn *patient
	gone sync.Once
}

// upgrade makes a request a WebSocket and hands it to serve. It answers those that
// it refuses.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, serve func(*socket)) {
	select {
	case s.slots <- struct{}{}:
	default:
		http.Error(w, "there are as many connections as there can be", http.StatusServiceUnavailable)
		return
	}
	defer func() { <-s.slots }()
	var up ws.HTTPUpgrader
	conn, rw, _, err := up.Upgrade(r, w)
	if err != nil {
		return // and the client has been told
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
		c.leave(goingAway, "the server ends")
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

// leave ends the connection, and tells the client why if it still listens. Only
// the first reason is told. Code 0 answers the client's own farewell.
func (c *socket) leave(code int, reason string) {
	c.gone.Do(func() {
		c.conn.hurry(farewellTime) // frees the lock on writing too, if somebody hangs in it
		var why error
		if code != 0 {
			why = &wire.ProtocolError{Code: code, Reason: reason}
		}
		_ = c.Farewell(why)
		_ = c.conn.Close()
	})
}

// quit is leave for what ended reading from the client, or writing to it.
func (s *Server) quit(c *socket, err error) {
	var broken *wire.ProtocolError
	var closed *wire.ClosedError
	switch {
	case errors.As(err, &broken):
		s.opt.Log.Info("a client broke the protocol and was cut off", "reason", broken.Reason)
		c.leave(broken.Code, broken.Reason)
	case errors.As(err, &closed), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		c.leave(0, "")
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.opt.Log.Info("a client took nothing for too long and was cut off", "limit", s.writeTime)
		c.leave(int(ws.StatusPolicyViolation), "you took nothing for "+s.writeTime.String())
	default:
		c.leave(goingAway, err.Error())
	}
}
