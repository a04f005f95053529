package pg

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// stallTime is how long the server may send nothing to a program that waits for it. It is longer than
// a statement waits for a lock.
const stallTime = 2 * time.Minute

// bounded returns a dial whose connections break when the server is silent for stall. The kernel
// notices a server that has vanished after a quarter of an hour, and never one that stands still.
func bounded(dial pgconn.DialFunc, stall time.Duration) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stalling{Conn: c, stall: stall}, nil
	}
}

// stalling is a connection with a deadline for each read, unless its user has set one: that ends
// the statement of a context.
type stalling struct {
	net.Conn
	stall time.Duration

	mu  sync.Mutex
	set bool // a deadline
}

// Read implements net.Conn.
func (c *stalling) Read(p []byte) (int, error) {
	c.mu.Lock()
	if !c.set {
		_ = c.Conn.SetReadDeadline(time.Now().Add(c.stall)) // an error comes from Read, too
	}
	c.mu.Unlock()
	return c.Conn.Read(p)
}

// SetDeadline implements net.Conn.
func (c *stalling) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = !t.IsZero()
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *stalling) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = !t.IsZero()
	return c.Conn.SetReadDeadline(t)
}
