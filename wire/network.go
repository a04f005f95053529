package wire

import (
	"context"
	"errors"
	"io"
	"sync"
)

// NetworkStream gives the sandbox a network card (Sandbox.network) and returns its
// other end: Ethernet frames, each after its length in four bytes, big-endian. What
// comes out of it is a guest's, and a length may be anything. A write waits while
// the guest does not take what was written before. One goroutine may read and one may
// write; Close may come from any, and ends both. p's In and Out are set here. ctx
// bounds the call only. Errors are those of the agent, and of kind Dead when the
// connection ends; io.EOF when the guest's side has ended.
func (c *Client) NetworkStream(ctx context.Context, p SandboxNetworkParams) (io.ReadWriteCloser, error) {
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
