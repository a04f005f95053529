package server

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/node/member"
	"turnstone.dev/turnstone/internal/server/peers"
)

// inMemory is the address of a node that no other process reaches.
const inMemory = "memory:"

func (s *Server) openNode(ctx context.Context) error {
	if !s.c.Has(config.Node) {
		return nil
	}
	m, err := member.Open(ctx, member.Options{Dir: s.o.Dir, Executor: s.o.Executor,
		Settings: s.c.Machine, Address: s.address(), TrustOperator: s.c.Has(config.Controller),
		Limits: s.c.Limits, Pools: s.c.PoolsAt(config.AtNode), Log: s.log, Watch: s.telemetry})
	if err != nil {
		return err
	}
	s.onClose(m.Close)
	s.telemetry.Watch(m)
	s.node = m
	return nil
}

// address is where this process's node is registered.
func (s *Server) address() string {
	if s.c.Peers.Address != "" {
		return s.c.Peers.Address
	}
	return inMemory
}

// here reports whether an address is this process's node. The controller asks before the node is
// open: it knows the node from an earlier process.
func (s *Server) here(address string) bool {
	return s.c.Has(config.Node) && address == s.address()
}

// errElsewhere returns the error of a node that was in an earlier process with all roles. The
// controller knows it until it is lost.
func errElsewhere() error {
	return turnstone.Errorf("node.call", turnstone.KindUnavailable, "node",
		"was part of an earlier server").WithHint("wait until the node is back, or lost")
}

// A way leads to the controller.
type way interface {
	http.RoundTripper
	CloseIdleConnections()
}

// toController returns a client of the controller, and its transport, which its owner closes.
// Each call runs within.
func (s *Server) toController(within ...connect.Interceptor) (connectv1.ControllerServiceClient, way) {
	var t way
	switch {
	case s.controller != nil:
		t = peers.MemoryTransport(s.memory)
	case s.leader != nil:
		t = s.leader
	default:
		t = s.peers.Transport(s.c.Peers.Controller[0], config.Controller)
	}
	return connectv1.NewControllerServiceClient(&http.Client{Transport: t}, controllerURL,
		append(api.ClientOptions(), connect.WithInterceptors(append(within, s.telemetry.Onward())...))...), t
}

// controllerURL stands for the controller: its transport knows where it is.
const controllerURL = "http://controller"

// noTurns returns why this process's node gets no turns; nil: it gets some, is not open yet, or is none.
func (s *Server) noTurns() error {
	if s.node == nil {
		return nil
	}
	return s.node.StoreAway()
}
