package cdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// maxPending bounds the commands of one session that wait for an answer.
const maxPending = 1024

// A session is one connection to an agent, of which the client's end is a flat
// session. What an agent sends is hostile: it may speak for its own session only.
type session struct {
	b       *browser
	id      string // "" is the server's own
	channel uint32
	target  turnstone.SandboxID
	conn    net.Conn
	frames  *wire.Frames
	queue   *queue
	once    sync.Once

	mu      sync.Mutex
	pending map[int64]int // commands that wait for an answer, by their id; nil: it has ended
}

func newSession(b *browser, conn net.Conn) *session {
	p := newPatient(conn, nil, b.srv.writeTime)
	return &session{b: b, conn: conn, frames: wire.NewFrames(p, false), queue: newQueue(), pending: make(map[int64]int)}
}

// start begins to pass messages, in both directions.
func (s *session) start() {
	s.b.wg.Go(s.send)
	s.b.wg.Go(s.receive)
}

// expect notes a command. It reports whether there may be one more, and whether the
// session has ended, in which case nobody answers it. A client may use an id again;
// that is its own affair.
func (s *session) expect(id int64) (ok, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return false, true
	}
	if len(s.pending) >= maxPending || s.pending[id] >= maxPending {
		return false, false
	}
	s.pending[id]++
	return true, false
}

// pass puts what the client sends into the queue, and reports whether it is there.
// A client has one reading goroutine for all of its sessions: a sandbox that takes
// nothing must not hold it up, and loses its session. The server's own session may:
// it waits for nobody but the client.
func (s *session) pass(i item) bool {
	if s.id == "" {
		return s.queue.push(i)
	}
	added, full := s.queue.offer(i)
	if full {
		s.b.srv.opt.Log.Info("a sandbox does not take what it is sent and its session was ended", "sandbox", s.target)
		s.end(fmt.Sprintf("the sandbox has left %d MiB untaken", maxQueue>>20))
	}
	return added
}

// forget takes a command off the list, and reports whether it was on it.
func (s *session) forget(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.pending[id]; n {
	case 0:
		return false
	case 1:
		delete(s.pending, id)
	default:
		s.pending[id] = n - 1
	}
	return true
}

// send writes to the agent what the client sends.
func (s *session) send() {
	for {
		i, ok := s.queue.pop()
		if !ok {
			return
		}
		var err error
		if i.text {
			err = s.frames.WriteText(i.data)
		} else {
			err = s.frames.WriteBinary(i.data)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && s.id == "" {
			s.b.srv.quit(s.b.socket, err) // our own end waits for the client only
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.b.srv.opt.Log.Info("a sandbox took nothing and its session was ended", "sandbox", s.target, "limit", s.b.srv.writeTime)
			s.end("the sandbox took nothing for " + s.b.srv.writeTime.String())
			return
		}
		if err != nil {
			return // and receive knows why
		}
	}
}

// receive passes on what the agent sends.
func (s *session) receive() {
	var buf []byte
	for {
		text, p, err := s.frames.Next(buf)
		if err != nil && s.id == "" { // the server's own: it was told too much nonsense, or all ends
			s.b.srv.quit(s.b.socket, err)
			return
		}
		if err != nil {
			_, reason := s.b.srv.ended(s.target, err)
			s.end(reason)
			return
		}
		if text {
			err = s.message(p)
		} else {
			err = s.frame(p)
		}
		var broken *wire.ProtocolError
		if errors.As(err, &broken) {
			s.b.srv.opt.Log.Warn("a sandbox broke the protocol and its session was ended", "sandbox", s.target, "reason", broken.Reason)
			s.end("the sandbox broke the protocol: " + broken.Reason)
			return
		}
		if err != nil { // the client does not take it
			s.b.srv.quit(s.b.socket, err)
			return
		}
		if buf = p; cap(buf) > 4*wire.MaxChunk {
			buf = nil
		}
	}
}

// message passes an answer or an event on. Answers to what was not asked in this
// session, and events that only the server has, are another sandbox's or the
// server's, forged.
func (s *session) message(p []byte) error {
	if !utf8.Valid(p) {
		return broken(invalidData, "a text message is not UTF-8")
	}
	m, err := wire.ParseMessage(p)
	if err != nil {
		return err
	}
	switch {
	case m.ID != nil && m.Method != "":
		return broken(protocolError, "a sandbox sends commands")
	case m.ID != nil:
		if !s.forget(*m.ID) {
			return nil // answered twice, or never asked
		}
	case s.id != "" && strings.HasPrefix(m.Method, "Target."):
		return broken(protocolError, "a sandbox speaks for the server")
	}
	m.SessionID = s.id
	raw, err := encode(m)
	if err != nil {
		return broken(protocolError, err.Error())
	}
	if len(raw) > wire.MaxMessage {
		return broken(protocolError, "a message is too long")
	}
	return s.b.socket.WriteText(raw)
}

func (s *session) frame(p []byte) error {
	f, err := wire.ParseFrame(p)
	if err != nil {
		return err
	}
	if f.Channel != 0 || s.id == "" {
		return broken(protocolError, "a binary frame names a session")
	}
	f.Channel = s.channel
	return s.b.socket.WriteBinary(f.Head(), f.Data)
}

// end ends the session. What waits for an answer gets one; the client is told, if
// there is a reason.
func (s *session) end(reason string) {
	s.once.Do(func() {
		s.queue.close()
		_ = s.conn.Close()
		s.b.remove(s)
		s.mu.Lock()
		var pending []int64
		for id, n := range s.pending {
			pending = append(pending, slices.Repeat([]int64{id}, n)...)
		}
		s.pending = nil
		s.mu.Unlock()
		if reason == "" || s.id == "" {
			return
		}
		slices.Sort(pending)
		for _, id := range pending {
			if s.b.refuse(&wire.Message{ID: &id, SessionID: s.id}, serverError, "the session has ended: "+reason) != nil {
				return
			}
		}
		_ = s.b.conn.EmitTargetDetachedFromTarget(s.b.conn.Context(), &wire.TargetDetachedFromTargetEvent{
			SessionID: s.id, TargetID: string(s.target), Reason: reason})
	})
}

// remove takes a session out of the connection's tables.
func (b *browser) remove(s *session) {
	if s.target != "" {
		b.srv.detach(s.target)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, s.id)
	delete(b.channels, s.channel)
}
