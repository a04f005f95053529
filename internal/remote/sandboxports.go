package remote

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/forward"
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
	// maxForwarded bounds the concurrent connections to ports of a sandbox.
	maxForwarded = 192
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
	ports := &forward.Ports{Open: func(ctx context.Context) (io.ReadWriteCloser, error) { return b.open(ctx, id) }}
	defer ports.Close()
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { b.untilEnd(ctx, id, cancel) })
	return forward.Serve(ctx, l, maxForwarded,
		func(ctx context.Context) (io.ReadWriteCloser, error) { return ports.Connect(ctx, port) }, failed)
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
