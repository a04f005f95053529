// Package server puts the roles of one process together: gateway, controller and node, their
// listeners, and their end. Roles of one process call each other over connections in memory, with
// the handlers that other processes reach.
package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/doors"
	"turnstone.dev/turnstone/internal/server/local"
	"turnstone.dev/turnstone/internal/server/node/member"
	"turnstone.dev/turnstone/internal/server/peers"
	"turnstone.dev/turnstone/internal/server/telemetry"
	"turnstone.dev/turnstone/internal/server/tlsfiles"
	"turnstone.dev/turnstone/internal/statedir"
)

// Options are the parts of a Server.
type Options struct {
	Config *config.Config
	Dir    *statedir.Dir
	// Executor are the options of the node's executor. It has a Holder, which keeps sandboxes.
	Executor  executor.Options
	Inherited *Inherited // sockets of a service manager; nil: none
	// MCP makes the endpoint of the setting mcp.listen; nil: there is none.
	MCP func(doors.Inside) doors.Door
	Log *slog.Logger
}

// A Server is the roles of a process. Its methods are safe for concurrent use, except that Serve is
// called once.
type Server struct {
	o     Options
	c     *config.Config
	log   *slog.Logger
	peers *peers.Peers
	// leader leads to that one of several controllers which leads; nil: there is one at most.
	leader *peers.Leader
	// memory leads to the handlers for other roles of this process.
	memory    *local.Memory
	telemetry *telemetry.Telemetry

	controller *controllerRole // nil: another process has it
	node       *member.Member  // the same
	gateway    *gatewayRole    // nil: neither callers nor the operator connect to this process
	e2b        *doors.E2B      // nil: E2B's clients are not answered
	mcp        *doors.MCP      // nil: clients of MCP are not answered

	tls       *tlsfiles.Watcher // of callers; nil: no TLS
	listeners []*listener
	close     []func() error // in reverse order
	closed    sync.Once
	failed    error // of close
}

// Open prepares everything that can fail: locks, files, keys, databases and listeners. Callers wait
// in the listeners' queues until Serve. Close the server.
func Open(ctx context.Context, o Options) (*Server, error) {
	s := &Server{o: o, c: o.Config, log: o.Log, memory: local.NewMemory()}
	s.onClose(s.memory.Close)
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	for _, role := range s.c.Roles {
		if role == config.Gateway {
			continue // it keeps nothing
		}
		lock, err := local.Lock(s.o.Dir, role)
		if err != nil {
			return err
		}
		s.onClose(func() error { lock.Release(); return nil })
	}
	err := s.fitConnections()
	if err != nil {
		return err
	}
	s.telemetry, err = telemetry.Open(ctx, telemetry.Options{Settings: s.c.Telemetry, Roles: s.c.Roles,
		Node: s.c.Machine.Name, Ready: s.ready, NoTurns: s.noTurns, Log: s.log})
	if err != nil {
		return err
	}
	s.onClose(s.telemetry.Close)
	if s.peers, err = peers.Open(s.c.Peers, s.log); err != nil {
		return err
	}
	if len(s.c.Peers.Controller) > 1 {
		s.leader = s.peers.Leader(s.c.Peers.Controller)
	}
	for _, open := range []func(context.Context) error{
		s.openController, s.openNode, s.openGateway, s.listen, s.openMCP, s.openE2B} {
		if err := open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// onClose makes Close call f, before what was added earlier.
func (s *Server) onClose(f func() error) { s.close = append(s.close, f) }

// Close ends everything at once: running turns end as interrupted turns do. Sandboxes continue.
func (s *Server) Close() error {
	s.closed.Do(func() {
		var errs []error
		for i := len(s.close) - 1; i >= 0; i-- {
			errs = append(errs, s.close[i]())
		}
		s.failed = errors.Join(errs...)
	})
	return s.failed
}

// Reload reads certificates again. They are also read again when their files change.
func (s *Server) Reload() error {
	err := s.peers.Reload()
	if s.tls != nil {
		err = errors.Join(err, s.tls.Reload())
	}
	if s.node != nil {
		err = errors.Join(err, s.node.Reload())
	}
	return err
}

// Serve answers until ctx ends, or until nobody has used it for limits.unused. Then no new turn starts, and the running ones have the time
// limits.end; the end of now ends them at once. The error is of kind Unavailable if a listener
// fails.
func (s *Server) Serve(ctx, now context.Context) error {
	all, cancel := context.WithCancel(context.WithoutCancel(ctx)) // of what lasts to the end
	defer cancel()
	callers, stopCallers := context.WithCancel(all)
	defer stopCallers()

	var wg sync.WaitGroup
	failed := make(chan error, len(s.listeners)+1)
	run := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	var answering sync.WaitGroup // the listeners of callers
	run(func() error { return s.peers.Serve(all, s.memory, s.peerHandler()) })
	run(func() error { return s.telemetry.Serve(all) })
	for _, l := range s.listeners {
		if l.peers {
			run(func() error { return s.peers.Serve(all, l, s.peerHandler()) })
			continue
		}
		answering.Add(1)
		run(func() error {
			defer answering.Done()
			return s.gateway.Serve(callers, l.Listener, l.options)
		})
	}
	s.background(all, run)
	endDoors := s.serveDoors(callers, now, run)
	s.announce()

	var err error
	select {
	case err = <-failed:
	case <-s.unused(all, run):
		s.log.Info("ending; nobody used the server", "for", s.c.Limits.Unused)
	case <-ctx.Done():
		s.log.Info("ending; running turns may finish", "within", s.c.Limits.End)
	}
	if err == nil {
		endDoors()
	}
	stopCallers()
	if err == nil {
		s.drain(now, &answering)
	}
	if s.gateway != nil {
		err = errors.Join(err, s.gateway.Close())
	}
	cancel()
	err = errors.Join(err, s.Close())
	wg.Wait()
	s.log.Info("ended")
	return err
}

// announce logs where the server listens.
func (s *Server) announce() {
	s.log.Info("serving", "version", turnstone.Version, "roles", s.c.Roles,
		"listeners", s.Addresses())
	if at := s.telemetry.Address(); at != "" {
		s.log.Info("serving metrics", "address", at)
	}
}

// background runs what is neither a listener nor a call.
func (s *Server) background(ctx context.Context, run func(func() error)) {
	if s.leader != nil {
		run(func() error { s.leader.Run(ctx); return nil })
	}
	if s.node != nil {
		run(func() error {
			client, t := s.toController()
			defer t.CloseIdleConnections()
			s.node.Register(ctx, client)
			return nil
		})
	}
	if s.gateway != nil {
		if follow := s.gateway.follow; follow != nil {
			run(func() error { follow(ctx); return nil })
		}
	}
}
