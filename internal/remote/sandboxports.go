package remote

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
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
	go join(far, c)
	return near, nil
}

// join copies in both directions until one has ended, and closes both.
func join(a, b io.ReadWriteCloser) {
	var both sync.WaitGroup
	pump := func(dst io.WriteCloser, src io.Reader) {
		_, err := io.Copy(dst, src)
		w, ok := dst.(interface{ CloseWrite() error })
		if err != nil || !ok || w.CloseWrite() != nil {
			_, _ = a.Close(), b.Close()
		}
	}
	both.Go(func() { pump(a, b) })
	both.Go(func() { pump(b, a) })
	both.Wait()
	_, _ = a.Close(), b.Close()
}

const (
	// maxForwarded bounds the concurrent connections to ports of a sandbox.
	maxForwarded = 256
	// aliveTime is the time between two questions whether a sandbox has ended.
	aliveTime = 5 * time.Second
)

// Expose forwards the connections of l to a TCP port of a sandbox, until ctx or the sandbox ends,
// and closes l. The server opens the port, and sees its traffic. failed is called from any
// goroutine for each connection that could not be forwarded; it may be nil.
func (b *Sandboxes) Expose(ctx context.Context, id turnstone.SandboxID, port uint16, l net.Listener,
	failed func(error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	to, err := b.exposed(ctx, id, port)
	if err != nil {
		_ = l.Close()
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { b.untilEnd(ctx, id, cancel) })
	slots := make(chan struct{}, maxForwarded)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil { // probably out of descriptors
			time.Sleep(100 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			guest, err := (&net.Dialer{Timeout: connectTime}).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = conn.Close()
				if failed != nil && ctx.Err() == nil {
					failed(turnstone.NewError("sandbox.expose", turnstone.KindUnavailable, to, err))
				}
				return
			}
			defer context.AfterFunc(ctx, func() { _ = guest.Close() })()
			join(guest, conn)
		})
	}
}

// exposed asks the server to open a port, and returns where.
func (b *Sandboxes) exposed(ctx context.Context, id turnstone.SandboxID, port uint16) (
	string, error) {
	a, err := b.calls.ExposePort(ctx, connect.NewRequest(&v1.ExposePortRequest{
		SandboxId: string(id), Port: uint32(port)}))
	if err != nil {
		return "", err
	}
	u, err := url.Parse(a.Msg.Url)
	if err != nil || u.Hostname() == "" || u.Port() == "" {
		return "", turnstone.Errorf("sandbox.expose", turnstone.KindIntegrity, "the server",
			"answers %.100q, which is no address of a port", a.Msg.Url)
	}
	return u.Host, nil
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
