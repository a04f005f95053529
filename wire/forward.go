package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A PortStream is a connection to a port of a sandbox. A single goroutine may read and a single
// goroutine may write; Close may be called from any goroutine. It is a net.Conn for libraries that
// want one: its addresses name no place, and it has no deadlines.
type PortStream struct {
	r    *Receiver
	s    *Sender
	once sync.Once
}

// ConnectPort opens a TCP connection to a port of the sandbox (Sandbox.connect); it sets the streams
// of p. ctx bounds the call only. The errors are the agent's, and of kind KindDead when the connection
// of the wire ends.
func (c *Client) ConnectPort(ctx context.Context, p SandboxConnectParams) (*PortStream, error) {
	p.In, p.Out = c.NewStream(), c.NewStream()
	r, err := c.Receiver(p.Out)
	if err != nil {
		return nil, err
	}
	s, err := c.Sender(p.In)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	err = c.SandboxConnect(ctx, &p)
	if p.Loopback && turnstone.KindOf(err) == turnstone.KindInvalid { // an agent of an older version
		p.Loopback = false
		err = c.SandboxConnect(ctx, &p)
	}
	if err != nil {
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

type portAddr struct{}

func (portAddr) Network() string { return "sandbox" }
func (portAddr) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (*PortStream) LocalAddr() net.Addr { return portAddr{} }

// RemoteAddr implements net.Conn.
func (*PortStream) RemoteAddr() net.Addr { return portAddr{} }

// SetDeadline implements net.Conn, and does nothing.
func (*PortStream) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn, and does nothing.
func (*PortStream) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn, and does nothing.
func (*PortStream) SetWriteDeadline(time.Time) error { return nil }

// DialPort opens a connection to a port of a sandbox over stream, a connection to the sandbox's agent
// that has no other use: it is closed with the returned one, or if there is none. The errors are those
// of ConnectPort.
func DialPort(ctx context.Context, stream io.ReadWriteCloser, p SandboxConnectParams) (net.Conn, error) {
	c := NewClient(stream)
	conn, err := c.ConnectPort(ctx, p)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return ownPort{conn, c}, nil
}

// An ownPort is a PortStream with a connection of its own.
type ownPort struct {
	*PortStream
	client *Client
}

// Close implements net.Conn.
func (p ownPort) Close() error {
	_ = p.PortStream.Close()
	return p.client.Close()
}
