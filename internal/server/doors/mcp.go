package doors

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"

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
	// Arrive admits a request before its token is looked at, within the rate of its address.
	Arrive func(*http.Request) error
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

// MCPOptions are what the door of MCP's clients needs.
type MCPOptions struct {
	Address     string      // the setting mcp.listen
	TLS         *tls.Config // nil: no TLS
	Connections int         // at one time, and never more than MCPConnections
	Proxies     []string    // the setting listen.proxies
	Arrive      func(*http.Request) error
	Verifier    auth.Verifier
	Make        func(Inside) Door
}

// MCPConnections bounds the connections at one time: each of the protocol's has two, a request and
// the stream of what the server tells.
const MCPConnections = 2000

// OpenMCP listens for MCP's clients. Close it.
func OpenMCP(ctx context.Context, o MCPOptions) (*MCP, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, turnstone.NewError("server.listen", turnstone.KindUnavailable, o.Address, err).
			WithHint(local.ListenHint(err, "mcp.listen"))
	}
	l = bound(l, min(o.Connections, MCPConnections), o.Proxies)
	if o.TLS != nil {
		l = tls.NewListener(l, o.TLS)
	}
	d := &MCP{listener: l, memory: local.NewMemory()}
	d.door = o.Make(Inside{Arrive: o.Arrive, Verifier: o.Verifier, Dial: d.memory.Dial})
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
