package agent

import (
	"context"
	"errors"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/forward"
	"turnstone.dev/turnstone/wire"
)

// maxForwards bounds the connections of Sandbox.connect.
const maxForwards = 256

// Connect implements Sandbox.connect.
func (s *sandbox) Connect(ctx context.Context, c *wire.Conn,
	p *wire.SandboxConnectParams) error {
	const op = wire.MethodSandboxConnect
	in, err := c.Receiver(p.In)
	if err != nil {
		return err
	}
	out, err := c.Sender(p.Out)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	release := func() { <-s.a.forwards }
	conn, err := func() (*net.TCPConn, error) {
		if p.Port < 1 || p.Port > 65535 {
			return nil, Invalid(op, "port", "it is not 1 to 65535")
		}
		select {
		case s.a.forwards <- struct{}{}:
		default:
			return nil, turnstone.Errorf(op, turnstone.KindExhausted, "sandbox",
				"too many connections to the sandbox's ports")
		}
		conn, err := forward.Dial(ctx, int(p.Port), p.Loopback)
		if err != nil {
			release()
		}
		return conn, err
	}()
	if err != nil {
		out.Abort(err)
		return errors.Join(err, in.Close())
	}
	stop := context.AfterFunc(c.Context(), func() { _ = conn.Close() })
	c.Go(func() {
		defer release()
		defer stop()
		forward.Copy(conn, in, out)
	})
	return nil
}
