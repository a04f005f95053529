package wire

import (
	"context"
	"errors"
	"sync"
)

// A PortStream is a connection to a port of a sandbox. A single goroutine may read and a single
// goroutine may write; Close may be called from any goroutine.
type PortStream struct {
	r    *Receiver
	s    *Sender
	once sync.Once
}

// ConnectPort opens a TCP connection to a port of the sandbox (Sandbox.connect). ctx bounds the call
// only. The errors are the agent's, and of kind KindDead when the connection of the wire ends.
func (c *Client) ConnectPort(ctx context.Context, port uint16) (*PortStream, error) {
	p := SandboxConnectParams{Port: int64(port), In: c.NewStream(), Out: c.NewStream()}
	r, err := c.Receiver(p.Out)
	if err != nil {
		return nil, err
	}
	s, err := c.Sender(p.In)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := c.SandboxConnect(ctx, &p); err != nil {
		s.Abort(nil)
		_ = r.Close()
		return nil, err
	}
	return &PortStream{r: r, s: s}, nil
}

// Read implements io.Reader.
func (p *PortStream) Read(b []byte) (int, error) { return p.r.Read(b) }

// Write implements io.Writer.
func (p *PortStream) Write(b []byte) (int, error) { return p.s.Write(b) }

// CloseWrite ends the direction to the port.
func (p *PortStream) CloseWrite() error { return p.s.Close() }

// Close ends both directions.
func (p *PortStream) Close() error {
	p.once.Do(func() {
		p.s.Abort(nil)
		_ = p.r.Close()
	})
	return nil
}
