package mcpdoor

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// A target is a branch of a session.
type target struct{ session, branch string }

// A connection is what a client's connection has: a place, and a sandbox for each branch that it
// used. Where the protocol has no connections, it is what all calls of a party have: the sandboxes are
// those of its caller.
type connection struct {
	place Place
	log   *slog.Logger
	kept  outputs
	boxes *boxes
	// handles says that only a call's arguments select a session.
	handles bool

	calls   context.Context // ends with the connection
	cancel  context.CancelFunc
	running sync.WaitGroup // calls

	// the door guards these:
	busy int       // running calls
	last time.Time // the end of the last call
}

// newConnection returns a connection whose calls work in a place.
func (d *Door) newConnection(p Place, b *boxes) *connection {
	c := &connection{place: p, log: d.o.Log, boxes: b}
	c.calls, c.cancel = context.WithCancel(context.Background())
	return c
}

// target returns the branch of a call.
func (c *connection) target(session, branch string) target {
	if session == "" {
		session = c.place.Session
	}
	if branch == "" {
		branch = "main"
	}
	return target{session, branch}
}

// newSession returns the name of a session that nobody has.
func newSession() string { return "mcp-" + strings.ToLower(rand.Text()[:12]) }

// extend extends the time of the connection's sandboxes until its end.
func (c *connection) extend() {
	every := time.NewTicker(leaseEvery)
	defer every.Stop()
	for {
		select {
		case <-c.calls.Done():
			return
		case <-every.C:
			c.boxes.extend(c.calls, c.log)
		}
	}
}

// free frees the place when the calls have ended.
func (c *connection) free() {
	c.running.Wait()
	if c.place.Close == nil {
		return
	}
	if err := c.place.Close(); err != nil {
		c.log.Warn("the connection's place", "error", err)
	}
}
