package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
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
type Link struct{ s *yamux.Session }

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
	s, err := newSession(&linkGuard{ReadWriteCloser: conn, host: host}, cfg)
	if err != nil {
		return nil, err
	}
	return &Link{s}, nil
}

// Open opens a stream. Only the host may.
func (l *Link) Open() (LinkStream, error) {
	s, err := l.s.OpenStream()
	if err != nil {
		return nil, err
	}
	return linkStream{s}, nil
}

// Accept waits for the next stream that the host opens.
func (l *Link) Accept() (LinkStream, error) {
	s, err := l.s.AcceptStream()
	if err != nil {
		return nil, err
	}
	return linkStream{s}, nil
}

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.s.CloseChan() }

// Close ends the link and all its streams.
func (l *Link) Close() error { return l.s.Close() }

type linkStream struct{ s *yamux.Stream }

func (m linkStream) Read(p []byte) (int, error) {
	n, err := m.s.Read(p)
	return n, linkEnd(err)
}

func (m linkStream) Write(p []byte) (int, error) {
	n, err := m.s.Write(p)
	return n, linkEnd(err)
}

// linkEnd gives yamux's several ways to say that a stream has ended the one name
// that other connections have for it, so that a call on a closed machine is told
// from one that failed. A timeout is Abort's: nobody else sets a deadline.
func linkEnd(err error) error {
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

// errLink means that the other side does what neither side of a link does.
var errLink = errors.New("the link carried a frame that has no place in it")

// A linkGuard reads along with yamux and ends the link at what the other side has
// no reason to send, because yamux spends memory on it without bound: it answers
// each ping with a goroutine of its own, and a host's yamux keeps streams that a
// hostile agent opens. Headers are 12 bytes: version, type, flags (2), stream (4),
// length (4); only frames of type 0 have a body (yamux's spec.md).
type linkGuard struct {
	io.ReadWriteCloser
	host bool
	head [12]byte
	have int   // bytes of head that have been seen
	body int64 // bytes of the current frame's body that are still to come
	bad  bool

	out []byte // a header that was written, and waits for its body
}

// joinLimit is the largest body that is copied behind its header.
const joinLimit = 16 << 10

// Write implements io.Writer. yamux writes a frame's header and its body one after
// the other; together they cost a guest one exit from its machine and not two. It
// is called by yamux's one writing goroutine.
func (g *linkGuard) Write(p []byte) (int, error) {
	if g.out == nil && len(p) == len(g.head) && p[1] == muxData {
		if n := binary.BigEndian.Uint32(p[8:]); n > 0 && n <= joinLimit {
			g.out = append(make([]byte, 0, len(p)+int(n)), p...)
			return len(p), nil
		}
	}
	if g.out == nil {
		return g.ReadWriteCloser.Write(p)
	}
	g.out = append(g.out, p...)
	if len(g.out) < len(g.head)+int(binary.BigEndian.Uint32(g.out[8:])) {
		return len(p), nil // yamux writes a body whole; this is for one that does not
	}
	_, err := g.ReadWriteCloser.Write(g.out)
	g.out = nil
	return len(p), err
}

// Read implements io.Reader. It is called by yamux's one reading goroutine.
func (g *linkGuard) Read(p []byte) (int, error) {
	if g.bad {
		return 0, errLink
	}
	n, err := g.ReadWriteCloser.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if g.body > 0 {
			skip := min(g.body, int64(len(rest)))
			g.body -= skip
			rest = rest[skip:]
			continue
		}
		k := copy(g.head[g.have:], rest)
		g.have += k
		rest = rest[k:]
		if g.have < len(g.head) {
			break
		}
		g.have = 0
		if !g.admit() {
			g.bad = true
			return 0, errLink
		}
	}
	return n, err
}

// Types and flags of yamux's frames.
const (
	muxData    = 0
	muxPing    = 2
	muxFlagSYN = 1
)

func (g *linkGuard) admit() bool {
	kind, flags := g.head[1], binary.BigEndian.Uint16(g.head[2:])
	if kind == muxPing || (g.host && flags&muxFlagSYN != 0) {
		return false
	}
	if kind == muxData {
		g.body = int64(binary.BigEndian.Uint32(g.head[8:]))
	}
	return true
}
