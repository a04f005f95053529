package netstack

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"turnstone.dev/turnstone/internal/network"
)

// A guestConn is the guest's end of a connection. It counts bytes, returns peeked bytes again, and
// has CloseWrite (from gonet.TCPConn) and Reset.
type guestConn struct {
	*gonet.TCPConn
	ep     tcpip.Endpoint
	queue  *waiter.Queue
	totals *counters

	sent, received atomic.Int64
	head           []byte // peeked, not yet read; belongs to the reader
	closing        sync.Once
}

// Read implements net.Conn.
func (c *guestConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.readNew(b)
}

// readNew reads bytes that were not peeked.
func (c *guestConn) readNew(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.sent.Add(int64(n))
	c.totals.sent.Add(int64(n))
	return n, err
}

// Write implements net.Conn.
func (c *guestConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	c.received.Add(int64(n))
	c.totals.received.Add(int64(n))
	return n, err
}

// Close implements net.Conn.
func (c *guestConn) Close() error {
	c.closing.Do(func() { _ = c.TCPConn.Close() })
	return nil
}

// Reset ends the connection at once, and tells the guest.
func (c *guestConn) Reset() { c.ep.Abort() }

// finish closes the connection and waits until the guest has acknowledged that, or until ctx or the
// time ends.
func (c *guestConn) finish(ctx context.Context, most time.Duration) {
	_ = c.Close()
	limit := time.NewTimer(most)
	defer limit.Stop()
	for wait := time.Millisecond; !ended(c.ep); wait = min(2*wait, 500*time.Millisecond) {
		select {
		case <-time.After(wait):
		case <-limit.C:
			c.Reset()
			return
		case <-ctx.Done():
			c.Reset()
			return
		}
	}
}

// ended reports whether no data is kept for the guest. In TIME-WAIT there is no buffer left.
func ended(ep tcpip.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateClose, tcp.StateError, tcp.StateTimeWait, tcp.StateInitial:
		return true
	}
	return false
}

// closeWriter is a connection whose sending half can be closed.
type closeWriter interface{ CloseWrite() error }

// transfer copies from one connection to the other until the end, which it forwards unchanged: as
// an end, or as a reset.
func transfer(to, from net.Conn, p *pool) {
	buf := p.get()
	defer p.put(buf)
	for {
		n, err := from.Read(*buf)
		if n > 0 {
			if _, werr := to.Write((*buf)[:n]); werr != nil {
				network.Reset(from)
				network.Reset(to)
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if half, ok := to.(closeWriter); !ok || half.CloseWrite() != nil {
				_ = to.Close()
			}
			return
		default:
			network.Reset(to)
			network.Reset(from)
			return
		}
	}
}

// A pool keeps buffers of a single size for reuse.
type pool struct{ sync.Pool }

func newPool(size int) *pool {
	return &pool{sync.Pool{New: func() any { b := make([]byte, size); return &b }}}
}

func (p *pool) get() *[]byte  { return p.Get().(*[]byte) }
func (p *pool) put(b *[]byte) { p.Put(b) }
