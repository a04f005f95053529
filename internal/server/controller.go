package server

import (
	"context"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/controller"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/peers"
	"turnstone.dev/turnstone/internal/server/records"
)

// A controllerRole is the controller of this process.
type controllerRole struct {
	*controller.Controller
	verifier *auth.TokenVerifier
	audit    guard.Auditor
}

func (s *Server) openController(ctx context.Context) error {
	if !s.c.Has(config.Controller) {
		return nil
	}
	store, err := records.Open(ctx, s.c.Records.Database, records.Options{Keep: s.c.Records.Keep})
	if err != nil {
		return err
	}
	s.onClose(store.Close)
	log, err := audit.Open(s.c.Audit.Folder, audit.Options{Size: s.c.Audit.Size, Sync: s.c.Audit.Sync,
		Log: s.log})
	if err != nil {
		return err
	}
	s.onClose(log.Close)
	auditor := guard.Auditor{Log: log}
	issuer, err := auth.OpenIssuer(ctx, s.c.Name, s.o.Dir.Path("keys", "token"),
		auth.SystemClock())
	if err != nil {
		return err
	}
	publisher, err := auth.NewPublisher(ctx, issuer, controller.Register(store))
	if err != nil {
		return err
	}
	verifier, err := s.verifier()
	if err != nil {
		return err
	}
	c, err := controller.New(ctx, controller.Options{Name: s.c.Name, Records: store,
		Issuer: issuer, Publisher: publisher, Verifier: verifier, Nodes: s.nodes(), Log: s.log,
		Longest: s.c.Tokens.Longest, Audit: auditor,
		// Verifiers refuse tokens when they heard nothing for the time of the setting, which other
		// processes may have set to less.
		Times: controller.Times{Beat: config.LeastRevocations / 4}})
	if err != nil {
		return err
	}
	s.onClose(c.Close)
	s.controller = &controllerRole{c, verifier, auditor}
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
			append(api.ClientOptions(), o...)...)
	}
}
