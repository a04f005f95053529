package oldwire

import (
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// A stream is one of the many byte streams of a transport. CloseWrite tells the
// other side that no more will come; reading goes on until its end. A stream is
// released when both sides have closed it for writing.
// Abort makes pending and later reads and writes fail, and closes it for writing.
type stream interface {
	io.ReadWriter
	CloseWrite() error
	Abort()
}

// A transport carries streams over one connection. The methods of the protocol
// know nothing else of how their bytes travel.
type transport interface {
	Open() (stream, error)
	Accept() (stream, error)
	Done() <-chan struct{}
	Close() error
}

const (
	// window bounds what one stream may have on its way, and so what a reader
	// that does not read makes its side hold.
	window = 1 << 20
	// A caller keeps few streams that the other side has not acknowledged, and
	// an agent never opens one: a small backlog bounds what a hostile agent can
	// make the host hold.
	callerBacklog = 16
	agentBacklog  = 256
	// A paused or overloaded sandbox is not dead, and callers have time limits
	// of their own: they close the connection.
	never = 1000 * time.Hour
)

type muxTransport struct{ s *yamux.Session }

func newTransport(conn io.ReadWriteCloser, caller bool) (transport, error) {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.ConnectionWriteTimeout = never
	cfg.StreamOpenTimeout = 0
	cfg.StreamCloseTimeout = 0
	cfg.MaxStreamWindowSize = window
	cfg.LogOutput = io.Discard
	cfg.AcceptBacklog = agentBacklog
	newSession := yamux.Server
	if caller {
		cfg.AcceptBacklog = callerBacklog
		newSession = yamux.Client
	}
	s, err := newSession(conn, cfg)
	if err != nil {
		return nil, err
	}
	return muxTransport{s}, nil
}

func (t muxTransport) Open() (stream, error) {
	s, err := t.s.OpenStream()
	if err != nil {
		return nil, err
	}
	return muxStream{s}, nil
}

func (t muxTransport) Accept() (stream, error) {
	s, err := t.s.AcceptStream()
	if err != nil {
		return nil, err
	}
	return muxStream{s}, nil
}

func (t muxTransport) Done() <-chan struct{} { return t.s.CloseChan() }
func (t muxTransport) Close() error          { return t.s.Close() }

type muxStream struct{ s *yamux.Stream }

func (m muxStream) Read(p []byte) (int, error)  { return m.s.Read(p) }
func (m muxStream) Write(p []byte) (int, error) { return m.s.Write(p) }

func (m muxStream) Abort() {
	_ = m.s.SetDeadline(time.Unix(1, 0))
	_ = m.s.Close()
}

// CloseWrite is yamux's Close, which closes the writing half only.
func (m muxStream) CloseWrite() error { return m.s.Close() }
