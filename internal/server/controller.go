package server

import (
	"context"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/controller/role"
	"turnstone.dev/turnstone/internal/server/peers"
)

// A controllerRole is the controller of this process.
type controllerRole struct {
	*role.Role
	verifier *auth.TokenVerifier
}

func (s *Server) openController(ctx context.Context) error {
	if !s.c.Has(config.Controller) {
		return nil
	}
	verifier, err := s.verifier()
	if err != nil {
		return err
	}
	c, err := role.Open(ctx, role.Options{Config: s.c, Dir: s.o.Dir, Verifier: verifier,
		Nodes: s.nodes(), Log: s.log, Watch: s.telemetry,
		Around: []connect.Interceptor{s.telemetry.Calls(config.Controller)}})
	if err != nil {
		return err
	}
	s.onClose(c.Close)
	s.telemetry.Watch(c)
	s.controller = &controllerRole{c, verifier}
	return nil
}

// verifier returns a verifier, which Close closes.
func (s *Server) verifier() (*auth.TokenVerifier, error) {
	v := auth.VerifierConfig{Name: s.c.Name, Clock: auth.SystemClock(), Leeway: s.c.Tokens.Leeway,
		Stale: s.c.Tokens.Revocations, Log: s.log}
	for _, i := range s.c.Issuers {
		v.Issuers = append(v.Issuers, i.OIDC())
	}
	verifier, err := auth.NewVerifier(v)
	if err == nil {
		s.onClose(verifier.Close)
	}
	return verifier, err
}

// nodes returns clients of nodes by their address. An address has one pool of connections.
func (s *Server) nodes() func(address string, o ...connect.ClientOption) connectv1.NodeServiceClient {
	var mu sync.Mutex
	transports := map[string]*http.Transport{}
	s.onClose(func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, t := range transports {
			t.CloseIdleConnections()
		}
		return nil
	})
	return func(address string, o ...connect.ClientOption) connectv1.NodeServiceClient {
		mu.Lock()
		defer mu.Unlock()
		t := transports[address]
		if t == nil {
			if t = s.peers.Transport(address, config.Node); s.here(address) {
				t = peers.MemoryTransport(s.memory)
			} else if address == inMemory {
				t = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					return nil, errElsewhere()
				}}
			}
			transports[address] = t
		}
		return connectv1.NewNodeServiceClient(&http.Client{Transport: t}, "http://node",
			append(append(api.ClientOptions(), connect.WithInterceptors(s.telemetry.Onward())), o...)...)
	}
}

// ready returns an error while this process has a controller that waits as a standby.
func (s *Server) ready(ctx context.Context) error {
	if s.controller == nil {
		return nil
	}
	return s.controller.Ready(ctx)
}
