package sandboxes

import (
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/ownsocket"
	"turnstone.dev/turnstone/wire"
)

const (
	// maxClients bounds the concurrent connections to a sandbox: an agent takes 64, of which the
	// holder uses some.
	maxClients = 60
	// maxChannels bounds the concurrent streams of channels, of which an agent takes 32. They have
	// a socket of their own, so that their clients cannot keep those of wire.sock out.
	maxChannels = 64
	// tryAgainLater is the status for a full server in RFC 6455's registry.
	tryAgainLater = 1013
	// farewellTime bounds the time in which a rejected client reads the reason.
	farewellTime = time.Second
	// leaveTime bounds how long a client stays after the agent has ended its connection.
	leaveTime = 5 * time.Second
	// relayBuffer is the memory per direction of a connection.
	relayBuffer = 64 << 10
)

// A relay gives each connection to a socket its own stream to the agent, and copies bytes between
// the two without interpreting them. A client that does not read blocks only its own stream.
type relay struct {
	listener *net.UnixListener
	connect  func() (wire.LinkStream, error)
	// away tells a client why it is turned away; nil: nothing.
	away func(c *net.UnixConn, reason string)
	log  *slog.Logger

	slots chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex
	open  map[*net.UnixConn]struct{} // nil once the relay is closed
}

func newRelay(l *net.UnixListener, connect func() (wire.LinkStream, error),
	log *slog.Logger) *relay {
	r := &relay{listener: l, connect: connect, away: turnAway, log: log,
		slots: make(chan struct{}, maxClients), open: make(map[*net.UnixConn]struct{})}
	r.wg.Go(r.accept)
	return r
}

// newChannelRelay is newRelay for encrypted channels, which the agent tells from connections by
// their first bytes.
func newChannelRelay(l *net.UnixListener, connect func() (wire.LinkStream, error),
	log *slog.Logger) *relay {
	begin := func() (wire.LinkStream, error) {
		s, err := connect()
		if err != nil {
			return nil, err
		}
		if _, err := s.Write([]byte(channel.Magic)); err != nil {
			s.Abort()
			return nil, err
		}
		return s, nil
	}
	r := &relay{listener: l, connect: begin, log: log, slots: make(chan struct{}, maxChannels),
		open: make(map[*net.UnixConn]struct{})}
	r.wg.Go(r.accept)
	return r
}

// close ends all connections and waits for them. It does nothing to nil.
func (r *relay) close() {
	if r == nil {
		return
	}
	_ = r.listener.Close()
	r.mu.Lock()
	open := r.open
	r.open = nil
	r.mu.Unlock()
	for c := range open {
		_ = c.Close()
	}
	r.wg.Wait()
}

func (r *relay) accept() {
	ownsocket.Accept(r.listener, r.log, "a connection", func(c *net.UnixConn) {
		select {
		case r.slots <- struct{}{}:
		default:
			r.turn(c, "the sandbox has reached its limit of connections")
			return
		}
		if !r.add(c) { // the relay was closed, and its listener before
			_ = c.Close()
			return
		}
		r.wg.Go(func() {
			defer func() { <-r.slots }()
			defer r.remove(c)
			r.serve(c)
		})
	})
}

func (r *relay) add(c *net.UnixConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		return false
	}
	r.open[c] = struct{}{}
	return true
}

func (r *relay) remove(c *net.UnixConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
	_ = c.Close()
}

func (r *relay) turn(c *net.UnixConn, reason string) {
	if r.away != nil {
		r.away(c, reason)
	}
	_ = c.Close()
}

// turnAway sends the reason in the protocol's format and closes the connection.
func turnAway(c *net.UnixConn, reason string) {
	_ = c.SetDeadline(time.Now().Add(farewellTime))
	_ = wire.NewFrames(c, false).Farewell(&wire.ProtocolError{Code: tryAgainLater, Reason: reason})
	_ = c.Close()
}

func (r *relay) serve(c *net.UnixConn) {
	s, err := r.connect()
	if err != nil {
		r.log.Warn("no stream to the agent", "err", err)
		r.turn(c, "the sandbox's agent cannot be reached")
		return
	}
	defer s.Close()
	var sending sync.WaitGroup
	sending.Go(func() {
		if err := transfer(s, c); err != nil {
			s.Abort()
			return
		}
		_ = s.CloseWrite()
	})
	if err := transfer(c, s); err != nil {
		s.Abort()
		_ = c.Close()
	} else {
		_ = c.CloseWrite()
		// the agent no longer reads the client's data
		_ = c.SetReadDeadline(time.Now().Add(leaveTime))
	}
	sending.Wait()
}

// transfer is io.Copy with its own buffer, which neither side replaces.
func transfer(dst io.Writer, src io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src},
		make([]byte, relayBuffer))
	return err
}
