package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// A LinkStream is a byte stream of a Link. CloseWrite ends writing and leaves reading open. Abort
// makes pending and later reads and writes fail. Close ends both halves. If the other side does not
// close a stream within half a minute after CloseWrite, the stream is reset.
type LinkStream interface {
	io.ReadWriteCloser
	CloseWrite() error
	Abort()
}

// A Link multiplexes byte streams, each with flow control, over the single stream between a host
// and its agent. The host opens streams and the agent accepts them. Each stream is a connection of
// the wire. The methods are safe for concurrent use.
type Link struct {
	s     *yamux.Session
	guard *linkGuard
	// opening keeps streams in order: yamux numbers streams before it sends them, and the other
	// side's guard rejects a stream that follows a newer stream.
	opening sync.Mutex
}

const (
	// linkWindow bounds the data in transit on a stream, and with it the memory that an idle reader
	// costs its side.
	linkWindow = 1 << 20
	// A host keeps few streams that the agent has not acknowledged, and an agent never opens
	// streams. Small backlogs bound the memory that the other side can occupy.
	hostBacklog  = 16
	agentBacklog = 64
	// closeTime is how long a stream that this side has closed may stay half open: yamux accepts
	// data for it meanwhile, and the other side may never close it.
	closeTime = 30 * time.Second
	// A paused or overloaded sandbox is not dead. Callers have their own time limits and close the
	// connection.
	never = 1000 * time.Hour
)

// NewLink starts a link over conn. The link then owns conn.
func NewLink(conn io.ReadWriteCloser, host bool) (*Link, error) {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.ConnectionWriteTimeout = never
	cfg.StreamOpenTimeout = 0
	cfg.StreamCloseTimeout = closeTime
	cfg.MaxStreamWindowSize = linkWindow
	cfg.LogOutput = io.Discard
	cfg.AcceptBacklog = agentBacklog
	newSession := yamux.Server
	if host {
		cfg.AcceptBacklog = hostBacklog
		newSession = yamux.Client
	}
	guard := &linkGuard{ReadWriteCloser: conn, host: host}
	s, err := newSession(guard, cfg)
	if err != nil {
		return nil, err
	}
	return &Link{s: s, guard: guard}, nil
}

// Open opens a stream. Only the host may call it.
func (l *Link) Open() (LinkStream, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	s, err := l.s.OpenStream()
	if err != nil {
		return nil, l.end(err)
	}
	return linkStream{s, l}, nil
}

// Accept waits for the next stream that the host opens.
func (l *Link) Accept() (LinkStream, error) {
	s, err := l.s.AcceptStream()
	if err != nil {
		return nil, l.end(err)
	}
	return linkStream{s, l}, nil
}

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.s.CloseChan() }

// Err returns a *ProtocolError if the link was ended because the other side sent a forbidden frame.
func (l *Link) Err() error { return l.guard.err() }

// Close ends the link and all its streams.
func (l *Link) Close() error { return l.s.Close() }

type linkStream struct {
	s *yamux.Stream
	l *Link
}

func (m linkStream) Read(p []byte) (int, error) {
	n, err := m.s.Read(p)
	return n, m.l.end(err)
}

func (m linkStream) Write(p []byte) (int, error) {
	n, err := m.s.Write(p)
	return n, m.l.end(err)
}

// end returns a stream's end as the stream's user sees it. A protocol violation by the other side
// takes precedence over its consequences. The various errors that yamux uses for an ended stream
// map to the error that other connections use, so that callers can tell a call on a closed machine
// from a call that failed. A timeout means Abort because nothing else sets a deadline.
func (l *Link) end(err error) error {
	if err == nil {
		return nil
	}
	if broken := l.guard.err(); broken != nil {
		return broken
	}
	for _, end := range []error{yamux.ErrStreamClosed, yamux.ErrSessionShutdown,
		yamux.ErrConnectionReset, yamux.ErrTimeout} {
		if errors.Is(err, end) {
			return fmt.Errorf("%w (%w)", net.ErrClosed, err)
		}
	}
	return err
}

// CloseWrite calls yamux's Close, which closes only the writing half.
func (m linkStream) CloseWrite() error { return m.s.Close() }

// Abort does not wait; yamux's Close waits for a link that the other side reads.
func (m linkStream) Abort() {
	_ = m.s.SetDeadline(time.Unix(1, 0))
	go func() { _ = m.s.Close() }() // ends with the link at the latest
}

func (m linkStream) Close() error {
	m.Abort()
	return nil
}
