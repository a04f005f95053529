package sandboxes

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone/wire"
)

const (
	// maxClients bounds the connections to one sandbox at one time: an agent takes
	// 64, some of which the holder has itself.
	maxClients = 60
	// tryAgainLater is the status of RFC 6455's registry for a server that is full.
	tryAgainLater = 1013
	// farewellTime bounds how long a client that is turned away has to take the reason.
	farewellTime = time.Second
	// leaveTime bounds how long a client stays when the agent has ended its connection.
	leaveTime = 5 * time.Second
	// relayBuffer is the memory of one direction of one connection.
	relayBuffer = 64 << 10
)

// A relay gives each connection to a socket a stream of its own to the agent, and
// copies bytes between the two without looking at them. A client that does not
// read holds up its own stream only.
type relay struct {
	listener *net.UnixListener
	connect  func() (wire.LinkStream, error)
	log      *slog.Logger

	slots chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex
	open  map[*net.UnixConn]struct{} // nil once the relay is closed
}

func newRelay(l *net.UnixListener, connect func() (wire.LinkStream, error), log *slog.Logger) *relay {
	r := &relay{listener: l, connect: connect, log: log, slots: make(chan struct{}, maxClients),
		open: make(map[*net.UnixConn]struct{})}
	r.wg.Go(r.accept)
	return r
}

// close ends all connections and waits for them.
func (r *relay) close() {
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
	for {
		c, err := r.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: some will be given back
			r.log.Warn("a connection could not be accepted", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err := checkPeer(c); err != nil {
			r.log.Warn("a connection was refused", "err", err)
			_ = c.Close()
			continue
		}
		select {
		case r.slots <- struct{}{}:
		default:
			turnAway(c, "the sandbox has as many connections as it can")
			continue
		}
		if !r.add(c) {
			_ = c.Close()
			return
		}
		r.wg.Go(func() {
			defer func() { <-r.slots }()
			defer r.remove(c)
			r.serve(c)
		})
	}
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

// turnAway says why, in the protocol's own form, and hangs up.
func turnAway(c *net.UnixConn, reason string) {
	_ = c.SetDeadline(time.Now().Add(farewellTime))
	_ = wire.NewFrames(c, false).Farewell(&wire.ProtocolError{Code: tryAgainLater, Reason: reason})
	_ = c.Close()
}

func (r *relay) serve(c *net.UnixConn) {
	s, err := r.connect()
	if err != nil {
		r.log.Warn("no stream to the agent", "err", err)
		turnAway(c, "the sandbox's agent cannot be reached")
		return
	}
	defer func() { _ = s.Close() }()
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
		_ = c.SetReadDeadline(time.Now().Add(leaveTime)) // nobody listens to what it says now
	}
	sending.Wait()
}

// transfer is io.Copy with a buffer of its own, which neither side replaces.
func transfer(dst io.Writer, src io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, relayBuffer))
	return err
}
