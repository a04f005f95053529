package server

import (
	"context"
	"crypto/tls"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/doors"
	"turnstone.dev/turnstone/internal/server/gateway"
)

// fitConnections lowers limits.connections to what the open files of this process allow. Each listener
// has the bound for itself: the gateway for the network and for sockets, and E2B's door.
func (s *Server) fitConnections() error {
	if !s.c.Has(config.Gateway) {
		return nil
	}
	asked := doors.Connections{Each: s.c.Limits.Connections, Listeners: 1}
	if s.c.Has(config.Controller) {
		asked.Listeners++
	}
	if s.c.E2B.Listen != "" {
		asked.Listeners++
	}
	if s.c.MCP.Listen != "" {
		asked.Others = doors.MCPConnections
	}
	most, err := doors.OpenFiles()
	if err != nil {
		return turnstone.NewError("server.limits", turnstone.KindUnavailable, "RLIMIT_NOFILE", err)
	}
	fit, err := asked.Fit(most)
	if err != nil || fit == asked.Each {
		return err
	}
	s.log.Warn("limits.connections is lowered: this process may not open more files", "asked",
		asked.Each, "now", fit, "rlimit_nofile", most)
	c := *s.c
	c.Limits.Connections = fit
	s.c = &c
	return nil
}

// openMCP opens the endpoint of the setting mcp.listen.
func (s *Server) openMCP(ctx context.Context) (err error) {
	if s.c.MCP.Listen == "" || s.o.MCP == nil || s.gateway == nil {
		return nil
	}
	s.mcp, err = doors.OpenMCP(ctx, doors.MCPOptions{Address: s.c.MCP.Listen, TLS: s.doorTLS("http/1.1"),
		Connections: s.c.Limits.Connections, Proxies: s.c.Listen.Proxies,
		Arrive: s.gateway.Arrive, Verifier: s.gateway.verifier, Make: s.o.MCP})
	if err == nil {
		s.onClose(s.mcp.Close)
	}
	return err
}

// openE2B opens the door of the setting e2b.listen.
func (s *Server) openE2B(ctx context.Context) (err error) {
	if s.c.E2B.Listen == "" {
		return nil
	}
	if s.node == nil || s.controller == nil || s.gateway == nil { // the settings were checked
		return turnstone.Errorf("server.e2b", turnstone.KindInvalid, "e2b.listen",
			"needs the roles gateway, controller and node in one process")
	}
	o := doors.E2BOptions{Config: s.c, Dir: s.o.Dir, TLS: s.doorTLS("h2", "http/1.1"),
		Control: s.controller.Callers(), Verifier: s.controller.verifier, Arrive: s.gateway.Arrive,
		Begin: s.gateway.Begin, Log: s.log}
	o.Node, o.Tenants = s.node.Near()
	if s.e2b, err = doors.OpenE2B(ctx, o); err == nil {
		s.onClose(s.e2b.Close)
	}
	return err
}

// doorTLS returns the configuration of a door; nil: it has no TLS.
func (s *Server) doorTLS(protocols ...string) *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Server(protocols...)
}

// serveDoors serves the doors, and their calls to the gateway while callers may call. end ends that of
// MCP, and returns when what its callers began has ended, or when now ends.
func (s *Server) serveDoors(callers, now context.Context, run func(func() error)) (end func()) {
	if d := s.e2b; d != nil {
		run(func() error { return d.Serve(callers) })
		s.log.Info("serving E2B's clients, in the clear to the node", "address", d.Addr().String())
	}
	d := s.mcp
	if d == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(callers)
	ended := make(chan struct{})
	run(func() error { return s.gateway.Serve(callers, d.Calls(), gateway.ServeOptions{}) })
	run(func() error {
		defer close(ended)
		return d.Serve(ctx, now)
	})
	s.log.Info("serving MCP", "address", d.Addr().String())
	return func() {
		cancel()
		<-ended
	}
}
