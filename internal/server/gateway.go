package server

import (
	"context"
	"net"
	"net/netip"
	"net/url"

	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/gateway"
)

// A gatewayRole answers callers. A process with the controller has one for the operator's socket,
// also without the role gateway.
type gatewayRole struct {
	*gateway.Gateway
	verifier auth.Verifier
	follow   func(ctx context.Context) // keeps the verifier informed until ctx ends; nil: not needed
}

func (s *Server) openGateway(context.Context) error {
	if !s.c.Has(config.Gateway) && s.controller == nil {
		return nil
	}
	client, t := s.toController(silent(s.log))
	s.onClose(func() error { t.CloseIdleConnections(); return nil })
	g := &gatewayRole{}
	o := gateway.Options{Name: s.c.Name, Locator: client, Dial: s.dialNode, Limits: s.limits(),
		Around: s.telemetry.Requests, Log: s.log, Origins: s.c.Listen.Origins}
	for _, p := range s.c.Listen.Proxies {
		prefix, err := netip.ParsePrefix(p)
		if err != nil {
			return err // the settings were checked
		}
		o.Proxies = append(o.Proxies, prefix)
	}
	if s.controller != nil {
		o.Control, o.Verifier = s.controller.Callers(), s.controller.verifier
		o.Refused = s.controller.Refused
		o.Ready = func(ctx context.Context) error {
			if err := s.controller.Ready(ctx); err != nil {
				return err
			}
			return s.controller.verifier.Ready()
		}
	} else {
		at, err := url.Parse(controllerURL)
		if err != nil {
			return err
		}
		verifier, err := s.verifier()
		if err != nil {
			return err
		}
		o.Control, o.Verifier = gateway.Controller(at, t, s.log), verifier
		g.follow = func(ctx context.Context) {
			// at least two confirmations: see openController
			gateway.Follow(ctx, client, verifier, s.c.Tokens.Revocations/2, s.log)
		}
	}
	if s.node != nil {
		o.Plain = s.node.Plain(s.c.Plaintext)
	}
	g.Gateway, g.verifier = gateway.New(o), o.Verifier
	s.onClose(g.Close)
	s.telemetry.Watch(g)
	s.gateway = g
	return nil
}

func (s *Server) limits() gateway.Limits {
	l := s.c.Limits
	return gateway.Limits{Connections: l.Connections, Handshake: l.Handshake, Idle: l.Idle,
		End: l.End, Request: int64(l.Request), Rate: l.Rate, Burst: l.Burst}
}

// dialNode connects to a node for a channel.
func (s *Server) dialNode(ctx context.Context, address string) (net.Conn, error) {
	if s.here(address) {
		return s.memory.Dial(ctx)
	}
	if address == inMemory {
		return nil, errElsewhere()
	}
	return s.peers.Dial(ctx, address, config.Node)
}
