package forward

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

const (
	// connectTime bounds the time in which a channel opens and a port answers.
	connectTime = 30 * time.Second
	// perChannel bounds the connections in one channel, of whose streams an agent takes 32.
	perChannel = 24
)

// Ports are connections to ports of a sandbox, also to those of its loopback. Several of them share a
// channel to its agent. Ports are safe for concurrent use.
type Ports struct {
	// Open opens a channel.
	Open func(ctx context.Context) (io.ReadWriteCloser, error)
	// Near connects without a channel, at the address of the sandbox's network card. Where nothing
	// listens there, its error is of kind Unavailable, and a channel is tried. nil: channels only.
	Near func(ctx context.Context, port uint16) (net.Conn, error)

	mu  sync.Mutex
	all []*channel
}

// A channel is a connection to an agent, with the number of those to ports in it.
type channel struct {
	*wire.Client
	used int
}

// A carried is a connection to a port in a channel.
type carried struct {
	*wire.PortStream
	leave func()
}

// Close implements io.Closer.
func (c carried) Close() error {
	defer c.leave()
	return c.PortStream.Close()
}

// Connect opens a connection to a port. It has CloseWrite.
func (p *Ports) Connect(ctx context.Context, port uint16) (io.ReadWriteCloser, error) {
	if p.Near != nil {
		conn, err := p.Near(ctx, port)
		if err == nil || turnstone.KindOf(err) != turnstone.KindUnavailable {
			return conn, err
		}
	}
	return p.carry(ctx, port)
}

// carry opens a connection to a port over a channel with room: a new one if there is none, or if the
// old ones were lost.
func (p *Ports) carry(ctx context.Context, port uint16) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for {
		c, fresh, err := p.channel(ctx)
		if err != nil {
			return nil, err
		}
		leave := sync.OnceFunc(func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			c.used--
		})
		s, err := c.ConnectPort(ctx, wire.SandboxConnectParams{Port: int64(port), Loopback: true})
		if err == nil {
			return carried{s, leave}, nil
		}
		leave()
		if fresh || turnstone.KindOf(err) != turnstone.KindDead || ctx.Err() != nil {
			return nil, err
		}
		_ = c.Close()
	}
}

// channel returns a channel with room, and counts a connection in it. A fresh one has been opened.
func (p *Ports) channel(ctx context.Context) (c *channel, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock() // a burst of connections makes one channel
	live := p.all[:0]
	for _, c := range p.all {
		select {
		case <-c.Done():
		default:
			live = append(live, c)
		}
	}
	p.all = live
	for _, c := range p.all {
		if c.used < perChannel {
			c.used++
			return c, false, nil
		}
	}
	stream, err := p.Open(ctx)
	if err != nil {
		return nil, false, err
	}
	c = &channel{wire.NewClient(stream), 1}
	p.all = append(p.all, c)
	return c, true, nil
}

// Close ends all channels, with the connections in them.
func (p *Ports) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.all {
		_ = c.Close()
	}
}
