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

// maxPending bounds the commands of a session that wait for an answer.
const maxPending = 1024

// A session is a connection to an agent that the client uses as a flat session. An agent's messages
// are untrusted: they may affect only the agent's own session.
type session struct {
	b       *browser
	id      string // "" is the server's own session
	channel uint32
	target  turnstone.SandboxID
	conn    net.Conn
	frames  *wire.Frames
	queue   *queue
	once    sync.Once

	mu sync.Mutex
	// commands that wait for an answer, by their id; nil: the session has ended
	pending map[int64]int
}

func newSession(b *browser, conn net.Conn) *session {
	p := newPatient(conn, nil, b.srv.writeTime)
	return &session{b: b, conn: conn, frames: wire.NewFrames(p, false), queue: newQueue(),
		pending: make(map[int64]int)}
}

// start starts to pass messages in both directions.
func (s *session) start() {
	s.b.wg.Go(s.send)
	s.b.wg.Go(s.receive)
}

// expect records a command. It reports whether another command is allowed, and whether the session
// has ended, in which case no answer will arrive. A client may reuse an id at its own risk.
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

// pass appends the client's message to the queue and reports whether it succeeded. A client has a
// single reading goroutine for all of its sessions. A sandbox that accepts nothing must not block
// that goroutine and loses its session. The server's own session may block because it waits only
// for the client.
func (s *session) pass(i item) bool {
	if s.id == "" {
		return s.queue.push(i)
	}
	added, full := s.queue.offer(i)
	if full {
		s.b.srv.opt.Log.Info("a sandbox does not accept its data and its session was ended",
			"sandbox", s.target)
		s.end(fmt.Sprintf("the sandbox has not accepted %d MiB", maxQueue>>20))
	}
	return added
}

// forget removes a command from the list and reports whether it was in the list.
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

// send writes the client's messages to the agent.
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
			s.b.srv.quit(s.b.socket, err) // the server's own session waits for the client only
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.b.srv.opt.Log.Info("a sandbox accepted no data and its session was ended", "sandbox",
				s.target, "limit", s.b.srv.writeTime)
			s.end("the sandbox accepted no data for " + s.b.srv.writeTime.String())
			return
		}
		if err != nil {
			return // receive knows the reason
		}
	}
}

// receive passes on the agent's messages.
func (s *session) receive() {
	var buf []byte
	for {
		text, p, err := s.frames.Next(buf)
		// the server's own session: too many malformed messages, or the server ends
		if err != nil && s.id == "" {
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
			s.b.srv.opt.Log.Warn("a sandbox violated the protocol and its session was ended",
				"sandbox", s.target, "reason", broken.Reason)
			s.end("the sandbox violated the protocol: " + broken.Reason)
			return
		}
		if err != nil { // the client does not read
			s.b.srv.quit(s.b.socket, err)
			return
		}
		if buf = p; cap(buf) > 4*wire.MaxChunk {
			buf = nil
		}
	}
}

// message passes on an answer or an event. Answers without a command in this session, and events
// that only the server sends, are forged: they would belong to another sandbox or to the server.
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
			return nil // a second answer, or an answer without a command
		}
	case s.id != "" && strings.HasPrefix(m.Method, "Target."):
		return broken(protocolError, "a sandbox sends a message of the server")
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

// end ends the session. Waiting commands get an error, and the client gets the reason if any.
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
			if s.b.refuse(&wire.Message{ID: &id, SessionID: s.id}, serverError,
				"the session has ended: "+reason) != nil {
				return
			}
		}
		_ = s.b.conn.EmitTargetDetachedFromTarget(s.b.conn.Context(),
			&wire.TargetDetachedFromTargetEvent{
				SessionID: s.id, TargetID: string(s.target), Reason: reason})
	})
}

// remove removes a session from the connection's tables.
func (b *browser) remove(s *session) {
	if s.target != "" {
		b.srv.detach(s.target)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, s.id)
	delete(b.channels, s.channel)
}
