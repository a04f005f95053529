package remote

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/forward"
	"turnstone.dev/turnstone/wire"
)

// Dial opens a connection of the wire to a sandbox.
func (b *Sandboxes) Dial(ctx context.Context, id turnstone.SandboxID) (net.Conn, error) {
	c, err := b.open(ctx, id)
	if err != nil {
		return nil, err
	}
	if conn, ok := c.(net.Conn); ok {
		return conn, nil
	}
	near, far := net.Pipe()
	go forward.Join(far, c)
	return near, nil
}

const (
	// maxForwarded bounds the concurrent connections to ports of a sandbox, and perChannel those in
	// one channel, of whose streams an agent takes 32.
	maxForwarded = 192
	perChannel   = 24
	// aliveTime is the time between two questions whether a sandbox has ended.
	aliveTime = 5 * time.Second
)

// Expose forwards the connections of l to a TCP port of a sandbox, through its channel, until ctx or
// the sandbox ends, and closes l. failed is called from any goroutine for each connection that could
// not be forwarded; it may be nil.
func (b *Sandboxes) Expose(ctx context.Context, id turnstone.SandboxID, port uint16, l net.Listener,
	failed func(error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &forwarder{dial: func(ctx context.Context) (*wire.Client, error) {
		return b.Client(ctx, id)
	}}
	defer f.close()
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { b.untilEnd(ctx, id, cancel) })
	return forward.Serve(ctx, l, maxForwarded,
		func(ctx context.Context) (io.ReadWriteCloser, func(), error) {
			return f.connect(ctx, port)
		}, failed)
}

// A forwarder has the channels of a sandbox through which connections to its ports go.
type forwarder struct {
	dial func(ctx context.Context) (*wire.Client, error)

	mu  sync.Mutex
	all []*carrier
}

// A carrier is a channel and the number of its connections.
type carrier struct {
	*wire.Client
	used int
}

// connect opens a connection to a port, over a channel with room: a new one if there is none, or if
// the old one was lost.
func (f *forwarder) connect(ctx context.Context, port uint16) (*wire.PortStream, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	for again := true; ; again = false {
		c, err := f.carrier(ctx)
		if err != nil {
			return nil, nil, err
		}
		done := func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			c.used--
		}
		s, err := c.ConnectPort(ctx, port)
		if err == nil {
			return s, done, nil
		}
		done()
		if !again || turnstone.KindOf(err) != turnstone.KindDead || ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

// carrier returns a channel with room, and counts a connection in it.
func (f *forwarder) carrier(ctx context.Context) (*carrier, error) {
	f.mu.Lock()
	defer f.mu.Unlock() // a burst of connections makes one channel
	live := f.all[:0]
	for _, c := range f.all {
		select {
		case <-c.Done():
		default:
			live = append(live, c)
		}
	}
	f.all = live
	for _, c := range f.all {
		if c.used < perChannel {
			c.used++
			return c, nil
		}
	}
	c, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	f.all = append(f.all, &carrier{c, 1})
	return f.all[len(f.all)-1], nil
}

func (f *forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.all {
		_ = c.Close()
	}
}

// untilEnd asks whether the sandbox still runs, and returns when it has ended.
func (b *Sandboxes) untilEnd(ctx context.Context, id turnstone.SandboxID,
	ended context.CancelCauseFunc) {
	tick := time.NewTicker(aliveTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		i, err := b.get(ctx, id)
		if turnstone.KindOf(err) == turnstone.KindNotFound || err == nil && i.State.Final() {
			ended(turnstone.Errorf("sandbox.expose", turnstone.KindDead, "sandbox "+string(id),
				"it has ended"))
			return
		}
	}
}
