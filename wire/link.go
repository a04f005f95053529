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

// A LinkStream is one of the byte streams of a Link. CloseWrite says that no
// more will come and leaves reading open; Abort makes pending and later reads
// and writes fail; Close is both halves' end. A stream that was closed for writing
// is reset when the other side has not closed it within half a minute.
type LinkStream interface {
	io.ReadWriteCloser
	CloseWrite() error
	Abort()
}

// A Link carries many byte streams over the one between a host and its agent,
// each with flow control of its own. The host opens them, the agent accepts.
// Each is one connection of the wire. Its methods are safe for concurrent use.
type Link struct {
	s     *yamux.Session
	guard *linkGuard
	// opening keeps streams in order: yamux numbers them before it sends them, and the
	// other side's guard takes a stream behind a newer one for a fault.
	opening sync.Mutex
}

const (
	// linkWindow bounds what one stream may have on its way, and so what a
	// reader that does not read makes its side hold.
	linkWindow = 1 << 20
	// A host keeps few streams that the agent has not acknowledged, and an agent
	// never opens one: small backlogs bound what the other side can make one hold.
	hostBacklog  = 16
	agentBacklog = 64
	// closeTime is how long a stream that this side has closed may stay half open:
	// yamux takes data for it meanwhile, and the other side need never close it.
	closeTime = 30 * time.Second
	// A paused or overloaded sandbox is not dead, and callers have time limits
	// of their own: they close the connection.
	never = 1000 * time.Hour
)

// NewLink starts a link over conn, which then belongs to it.
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

// Open opens a stream. Only the host may.
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

// Err is a *ProtocolError if the link was ended because the other side sent what no
// side of a link sends.
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

// end is why a stream has ended, as its user sees that. What the other side has broken
// comes before its consequences. yamux's several ways to say that a stream has ended get
// the one name that other connections have for it, so that a call on a closed machine is
// told from one that failed. A timeout is Abort's: nobody else sets a deadline.
func (l *Link) end(err error) error {
	if err == nil {
		return nil
	}
	if broken := l.guard.err(); broken != nil {
		return broken
	}
	for _, end := range []error{yamux.ErrStreamClosed, yamux.ErrSessionShutdown, yamux.ErrConnectionReset, yamux.ErrTimeout} {
		if errors.Is(err, end) {
			return fmt.Errorf("%w (%w)", net.ErrClosed, err)
		}
	}
	return err
}

// CloseWrite is yamux's Close, which closes the writing half only.
func (m linkStream) CloseWrite() error { return m.s.Close() }

// Abort does not wait: yamux's Close does, for a link that the other side reads.
func (m linkStream) Abort() {
	_ = m.s.SetDeadline(time.Unix(1, 0))
	go func() { _ = m.s.Close() }() // ends with the link at the latest
}

func (m linkStream) Close() error {
	m.Abort()
	return nil
}
