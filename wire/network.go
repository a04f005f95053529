package wire

import (
	"context"
	"errors"
	"io"
	"sync"
)

// NetworkStream adds a network card to the sandbox (Sandbox.network) and returns the card's other
// end: Ethernet frames, each preceded by its length in four bytes, big-endian. The guest's data is
// untrusted, and a length may have any value. A write blocks while the guest does not take earlier
// data. A single goroutine may read and a single goroutine may write; Close may be called from any
// goroutine and ends both. NetworkStream sets p's In and Out. ctx bounds the call only. The errors
// are the agent's, and of kind KindDead when the connection ends; reading returns io.EOF when the
// guest's side has ended.
func (c *Client) NetworkStream(ctx context.Context,
	p SandboxNetworkParams) (io.ReadWriteCloser, error) {
	p.In, p.Out = c.NewStream(), c.NewStream()
	r, err := c.Receiver(p.Out)
	if err != nil {
		return nil, err
	}
	s, err := c.Sender(p.In)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if _, err := c.SandboxNetwork(ctx, &p); err != nil {
		s.Abort(nil)
		_ = r.Close()
		return nil, err
	}
	return &networkStream{r: r, s: s}, nil
}

type networkStream struct {
	r    *Receiver
	s    *Sender
	once sync.Once
	err  error
}

func (n *networkStream) Read(p []byte) (int, error)  { return n.r.Read(p) }
func (n *networkStream) Write(p []byte) (int, error) { return n.s.Write(p) }

// Close implements io.Closer.
func (n *networkStream) Close() error {
	n.once.Do(func() {
		n.s.Abort(nil)
		n.err = n.r.Close()
	})
	return n.err
}
