package cdp

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"unicode/utf8"

	"turnstone.dev/turnstone/wire"
)

const (
	// maxSessions bounds the flat sessions of a connection.
	maxSessions = 64
	// maxPerTarget bounds a connection's sessions of a single sandbox.
	maxPerTarget = 16
	// maxAttached bounds this server's connections to a sandbox. A sandbox takes 60 connections;
	// the rest is for the command line.
	maxAttached = 48
)

// A browser is a connection with flat sessions. Messages without a session go to an in-process
// connection of the wire that answers the Target domain: the unnamed session.
type browser struct {
	srv    *Server
	socket *socket
	conn   *wire.Conn // this side's end of the unnamed session

	mu       sync.Mutex
	sessions map[string]*session // nil once the connection has ended
	channels map[uint32]*session
	last     uint32 // number of the newest channel
	wg       sync.WaitGroup
}

func (s *Server) serveBrowser(w http.ResponseWriter, r *http.Request) {
	s.upgrade(w, r, func(c *socket) {
		b := &browser{srv: s, socket: c, sessions: make(map[string]*session),
			channels: make(map[uint32]*session)}
		near, far := net.Pipe()
		d := wire.NewDispatcher()
		t := &targets{b: b}
		wire.RegisterTarget(d, t)
		b.conn = wire.NewConn(far, wire.Options{Dispatcher: d})
		own := newSession(b, near)
		b.sessions[""] = own
		own.start()
		s.quit(c, b.read())
		b.close(t)
	})
}

// close ends all sessions and waits for their end.
func (b *browser) close(t *targets) {
	b.mu.Lock()
	all := b.sessions
	b.sessions, b.channels = nil, nil
	b.mu.Unlock()
	for _, s := range all {
		s.end("")
	}
	_ = b.conn.Close()
	b.conn.Wait() // its handlers may still start sessions
	t.watching.Wait()
	b.wg.Wait()
}

// read processes the client's messages until reading fails or the client violates the protocol.
func (b *browser) read() error {
	var buf []byte
	for {
		text, p, err := b.socket.Next(buf)
		switch {
		case err != nil:
		case text:
			err = b.message(p)
		default:
			err = b.frame(p)
		}
		if err != nil {
			return err
		}
		if buf = p; cap(buf) > 4*wire.MaxChunk {
			buf = nil
		}
	}
}

func broken(code int, reason string) error {
	return &wire.ProtocolError{Code: code, Reason: reason}
}

// protocolError is RFC 6455's status for a protocol violation.
const protocolError = 1002

// message passes a command to its session.
func (b *browser) message(p []byte) error {
	if !utf8.Valid(p) {
		return broken(invalidData, "a text message is not UTF-8")
	}
	m, err := wire.ParseMessage(p)
	if err != nil {
		return err
	}
	if m.ID == nil || m.Method == "" {
		return broken(protocolError,
			"a message from a client is not a command: it does not have both id and method")
	}
	s := b.find(m.SessionID)
	if s == nil {
		return b.refuse(m, sessionNotFound, "there is no session with the given id")
	}
	if ok, ended := s.expect(*m.ID); ended {
		return b.refuse(m, sessionNotFound, "the session has ended")
	} else if !ok {
		return b.refuse(m, serverError, "too many commands of this session wait for an answer")
	}
	m.SessionID = ""
	raw, err := encode(m)
	if err != nil {
		return err
	}
	if !s.pass(item{text: true, data: raw}) && s.forget(*m.ID) {
		m.SessionID = s.id
		return b.refuse(m, sessionNotFound, "the session has ended")
	}
	return nil
}

func (b *browser) find(id string) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id]
}

// frame passes a binary frame to its session. A frame for an ended session is late, not an error.
func (b *browser) frame(p []byte) error {
	f, err := wire.ParseFrame(p)
	if err != nil {
		return err
	}
	b.mu.Lock()
	s, last := b.channels[f.Channel], b.last
	b.mu.Unlock()
	if s == nil {
		if f.Channel == 0 || f.Channel > last {
			return broken(protocolError, "a binary frame names an unknown session")
		}
		return nil
	}
	f.Channel = 0
	s.pass(item{data: append(f.Head(), f.Data...)})
	return nil
}

// Error codes that CDP servers use.
const (
	serverError     = -32000
	sessionNotFound = -32001
)

type replyError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// refuse answers a command that has no session.
func (b *browser) refuse(m *wire.Message, code int, text string) error {
	e, err := json.Marshal(replyError{code, text})
	if err != nil {
		return err
	}
	raw, err := encode(&wire.Message{ID: m.ID, SessionID: m.SessionID, Error: e})
	if err != nil {
		return err
	}
	return b.socket.WriteText(raw)
}

// encode is json.Marshal that keeps the raw values in m unchanged.
func encode(m *wire.Message) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}
