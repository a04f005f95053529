package doors

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/local"
)

// A Door answers callers of another protocol at an address of its own. It is a client of this
// server, with the tokens of its callers.
type Door interface {
	// Serve answers callers of l until ctx ends, and closes l. When it returns, what its callers
	// began has ended, unless now ends before.
	Serve(ctx, now context.Context, l net.Listener) error
}

// An Inside is what a Door has of its server.
type Inside struct {
	// Verifier verifies tokens, as the gateway does.
	Verifier auth.Verifier
	// Dial connects to the gateway as a caller of the network, who needs a token.
	Dial func(ctx context.Context) (net.Conn, error)
}

// An MCP is a Door with its listener, and with that of its own calls.
type MCP struct {
	door     Door
	listener net.Listener
	memory   *local.Memory
}

// OpenMCP listens at the address of the setting mcp.listen. make makes the door. Close it.
func OpenMCP(ctx context.Context, at string, tlsConfig *tls.Config, verifier auth.Verifier,
	make func(Inside) Door) (*MCP, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, at, err).
			WithHint(local.ListenHint(err, "mcp.listen"))
	}
	if tlsConfig != nil {
		l = tls.NewListener(l, tlsConfig)
	}
	d := &MCP{listener: l, memory: local.NewMemory()}
	d.door = make(Inside{Verifier: verifier, Dial: d.memory.Dial})
	return d, nil
}

// Calls is the listener of the door's own calls, at which the gateway has to answer.
func (d *MCP) Calls() net.Listener { return d.memory }

// Addr returns where it listens.
func (d *MCP) Addr() net.Addr { return d.listener.Addr() }

// Serve is Door.Serve at its listener.
func (d *MCP) Serve(ctx, now context.Context) error { return d.door.Serve(ctx, now, d.listener) }

// Close closes both listeners.
func (d *MCP) Close() error {
	err := d.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return errors.Join(err, d.memory.Close())
}
