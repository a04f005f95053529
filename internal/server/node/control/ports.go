package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// Bounds of exposed ports.
const (
	maxPorts        = 1000 // of the node
	maxSandboxPorts = 16
)

type portName struct {
	id   turnstone.SandboxID
	port uint16
}

// An exposed port has a listener on the node.
type exposed struct {
	kept.Port
	tenant string
	stop   func()
	timer  *time.Timer   // calls stop; nil without an end
	done   chan struct{} // closed when the listener is
}

func (e *exposed) close() {
	e.stop()
	<-e.done
}

// until sets the end of the port, zero for that of the sandbox. It is false if the port has ended. The
// caller holds the service's lock.
func (e *exposed) until(end time.Time) bool {
	if e.timer != nil && !e.timer.Stop() {
		return false
	}
	select {
	case <-e.done:
		return false
	default:
	}
	e.Expires, e.timer = end, nil
	if !end.IsZero() {
		e.timer = time.AfterFunc(time.Until(end), e.stop)
	}
	return true
}

// ExposePort makes a port of a sandbox reachable at an address of the node, until the sandbox or the
// time ends. A port that is exposed already keeps its address, and gets the new time.
func (s *Service) ExposePort(ctx context.Context,
	r *connect.Request[v1.NodeServiceExposePortRequest]) (
	*connect.Response[v1.ExposePortResponse], error) {
	q := r.Msg.Request
	who, err := s.caller(ctx, r.Msg.Principal, q, q.Client)
	if err != nil {
		return nil, err
	}
	release, err := s.busy.acquire(ctx, q.SandboxId)
	if err != nil {
		return nil, err
	}
	defer release()
	st, i, err := s.sandbox(r.Msg.Principal, q.SandboxId)
	if err != nil {
		return nil, err
	}
	if err := s.mayControl("sandbox.expose", who, st, i.ID); err != nil {
		return nil, err
	}
	refuse := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf("sandbox.expose", kind, "sandbox "+q.SandboxId, format, args...).
			WithHint(hint)
	}
	switch {
	case s.o.Expose == "":
		return nil, refuse(turnstone.KindUnavailable, "use turn sandbox expose, which forwards the "+
			"port through the sandbox's channel, or set node.expose", "the node exposes no ports")
	case i.State.Final():
		return nil, refuse(turnstone.KindDead, "create a new sandbox", "it is %s", i.State)
	}
	rec, err := s.record(st, i.ID)
	if err != nil {
		return nil, err
	}
	if rec == nil { // of a local command: its ports are exposed as long as the node runs
		rec = &kept.Sandbox{ID: i.ID}
	}
	p := kept.Port{Port: uint16(q.Port)}
	if q.Ttl != nil {
		p.Expires = time.Now().UTC().Add(q.Ttl.AsDuration())
	}
	rec.Ports = slices.DeleteFunc(rec.Ports, func(o kept.Port) bool {
		return !o.Expires.IsZero() && !time.Now().Before(o.Expires)
	})
	at := slices.IndexFunc(rec.Ports, func(o kept.Port) bool { return o.Port == p.Port })
	if at < 0 && len(rec.Ports) >= maxSandboxPorts {
		return nil, exhausted(refuse(turnstone.KindExhausted, "", "has %d ports exposed already",
			len(rec.Ports)))
	}
	if err := s.expose(st, i.ID, &p); err != nil {
		return nil, err
	}
	if at >= 0 {
		rec.Ports[at] = p
	} else {
		rec.Ports = append(rec.Ports, p)
	}
	if rec.Request != "" {
		if err := s.save(st, rec); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&v1.ExposePortResponse{Url: "http://" + p.Address,
		Expires: stamp(p.Expires)}), nil
}

// expose listens at p's address, or at one that it chooses and sets if p has none. A listener that the
// port has already stays, so that nobody else gets its address, and callers are not cut off.
func (s *Service) expose(st *tenants.State, id turnstone.SandboxID, p *kept.Port) error {
	n := portName{id, p.Port}
	s.mu.Lock()
	was, count, own := s.ports[n], len(s.ports), 0
	for _, e := range s.ports {
		if e.tenant == st.Tenant {
			own++
		}
	}
	if was != nil && was.until(p.Expires) {
		p.Address = was.Address
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if was != nil {
		was.close()
	} else if p.Address == "" && !s.addresses.Fit(own, count, s.o.Ports) || count >= s.o.Ports {
		return exhausted(turnstone.Errorf("sandbox.expose", turnstone.KindExhausted, "the node",
			"exposes %d ports, %d of them for this tenant, and may expose no more for it", count, own))
	}
	l, err := s.addresses.Listen(s.ctx, s.o.Expose, id, p)
	if err != nil {
		return turnstone.NewError("sandbox.expose", turnstone.KindUnavailable, p.Address, err).
			WithHint("let the node's operator choose another address for node.expose")
	}
	p.Address = l.Addr().String()
	ctx, stop := context.WithCancel(s.ctx)
	e := &exposed{Port: *p, tenant: st.Tenant, stop: stop, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		stop()
		_ = l.Close()
		return s.ctx.Err()
	}
	e.until(p.Expires)
	s.ports[n] = e
	s.wg.Go(func() {
		defer stop()
		_ = st.Sandboxes.Expose(ctx, id, n.port, l, nil) // the end of the sandbox or of the time
		s.addresses.Leave(id, l.Addr())
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.timer != nil {
			e.timer.Stop()
		}
		close(e.done)
		if s.ports[n] == e {
			delete(s.ports, n)
		}
	})
	return nil
}

// closePorts ends the exposed ports of a sandbox.
func (s *Service) closePorts(_ *tenants.State, id turnstone.SandboxID) {
	s.mu.Lock()
	var all []*exposed
	for n, e := range s.ports {
		if n.id == id {
			all = append(all, e)
			delete(s.ports, n)
		}
	}
	s.mu.Unlock()
	for _, e := range all {
		e.close()
	}
}

// restorePorts exposes the ports that a former process of the node had exposed, with the same numbers
// at the address of the present setting.
func (s *Service) restorePorts(st *tenants.State) {
	dir, err := st.Folder(sandboxFolder)
	if err != nil {
		return
	}
	ids, err := kept.List(dir)
	if err != nil {
		return
	}
	for _, id := range ids {
		rec, err := kept.Load(dir, id)
		if err != nil || rec == nil || len(rec.Ports) == 0 {
			continue
		}
		if i, err := st.Sandboxes.Get(id); err != nil || i.State.Final() {
			continue
		}
		for _, p := range rec.Ports {
			if !p.Expires.IsZero() && !time.Now().Before(p.Expires) {
				continue
			}
			s.restorePort(st, id, p)
		}
	}
}

func (s *Service) restorePort(st *tenants.State, id turnstone.SandboxID, p kept.Port) {
	was, err := p.Address, error(nil)
	if s.o.Expose == "" {
		err = errors.New("node.expose is no longer set")
	} else {
		err = s.expose(st, id, &p)
	}
	if err != nil {
		slog.Warn("a port is no longer exposed", "sandbox", id, "port", p.Port, "was", was, "err", err)
	} else if p.Address != was {
		slog.Warn("a port is exposed at another address, because node.expose has changed",
			"sandbox", id, "port", p.Port, "was", was, "address", p.Address)
	}
}
