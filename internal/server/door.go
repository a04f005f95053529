package server

import (
	"context"
	"crypto/tls"
	"net"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/gateway"
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

// A door is a Door with its listener, and with that of its own calls.
type door struct {
	Door
	listener net.Listener
	memory   *local.Memory
}

// openDoor opens the endpoint of the setting mcp.listen.
func (s *Server) openDoor(ctx context.Context) error {
	at := s.c.MCP.Listen
	if at == "" || s.o.MCP == nil || s.gateway == nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return turnstone.NewError("server.listen", turnstone.KindUnavailable, at, err).
			WithHint(local.ListenHint(err, "mcp.listen"))
	}
	s.onClose(ignoreClosed(l))
	if s.tls != nil {
		l = tls.NewListener(l, s.tls.Server("http/1.1"))
	}
	d := &door{listener: l, memory: local.NewMemory()}
	s.onClose(d.memory.Close)
	d.Door = s.o.MCP(Inside{Verifier: s.gateway.verifier, Dial: d.memory.Dial})
	s.door = d
	return nil
}

// serveDoor serves the endpoint, if there is one, and its calls to the gateway while callers may
// call. end ends it, and returns when what its callers began has ended, or when now ends.
func (s *Server) serveDoor(callers, now context.Context, run func(func() error)) (end func()) {
	d := s.door
	if d == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(callers)
	ended := make(chan struct{})
	run(func() error { return s.gateway.Serve(callers, d.memory, gateway.ServeOptions{}) })
	run(func() error {
		defer close(ended)
		return d.Serve(ctx, now, d.listener)
	})
	s.log.Info("serving MCP", "address", d.listener.Addr().String())
	return func() {
		cancel()
		<-ended
	}
}
