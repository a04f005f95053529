package cdp

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

const (
	// pollTime is the maximum delay of an event of the Target domain.
	pollTime = 500 * time.Millisecond
	// maxCreating bounds the sandboxes that clients create concurrently.
	maxCreating = 4
	targetType  = "sandbox"
)

func targetURL(id turnstone.SandboxID) string { return "turnstone:" + string(id) }

// targets answers the Target domain for a connection.
type targets struct {
	b *browser

	mu       sync.Mutex
	discover context.CancelFunc // nil: off
	watching sync.WaitGroup     // goroutines that SetDiscoverTargets has started
}

var _ wire.TargetServer = (*targets)(nil)

func (t *targets) info(i sandboxes.Info) wire.TargetTargetInfo {
	return wire.TargetTargetInfo{TargetID: string(i.ID), Type: targetType,
		Title: i.Title(), URL: targetURL(i.ID),
		Attached: t.b.srv.isAttached(i.ID),
		State:    wire.TargetTargetInfoState(i.State), Reason: i.Reason}
}

func (t *targets) list(ctx context.Context) ([]wire.TargetTargetInfo, error) {
	all, err := t.b.srv.opt.Backend.List(ctx)
	infos := []wire.TargetTargetInfo{}
	for _, i := range all {
		infos = append(infos, t.info(i))
	}
	return infos, err
}

// GetTargets implements wire.TargetServer.
func (t *targets) GetTargets(ctx context.Context,
	_ *wire.Conn) (*wire.TargetGetTargetsResult, error) {
	infos, err := t.list(ctx)
	if err != nil {
		return nil, err
	}
	return &wire.TargetGetTargetsResult{TargetInfos: infos}, nil
}

// SetDiscoverTargets implements wire.TargetServer.
func (t *targets) SetDiscoverTargets(ctx context.Context, c *wire.Conn,
	p *wire.TargetSetDiscoverTargetsParams) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.Discover {
		if t.discover != nil {
			t.discover()
			t.discover = nil
		}
		return nil
	}
	if t.discover != nil {
		return nil
	}
	first, err := t.list(ctx)
	if err != nil {
		return err
	}
	known := map[string]wire.TargetTargetInfo{}
	if err := announce(ctx, c, known, first); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(c.Context())
	t.discover = cancel
	t.watching.Go(func() {
		defer cancel()
		t.watch(watching, c, known)
	})
	return nil
}

// watch polls the sandboxes and reports changes.
func (t *targets) watch(ctx context.Context, c *wire.Conn, known map[string]wire.TargetTargetInfo) {
	tick := time.NewTicker(t.b.srv.pollTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := t.list(ctx)
		if err != nil {
			continue // the next attempt may succeed
		}
		if announce(ctx, c, known, now) != nil {
			return
		}
	}
}

// announce reports the differences between now and the known sandboxes, and updates the latter.
func announce(ctx context.Context, c *wire.Conn, known map[string]wire.TargetTargetInfo,
	now []wire.TargetTargetInfo) error {
	there := map[string]bool{}
	for _, i := range now {
		there[i.TargetID] = true
		old, seen := known[i.TargetID]
		known[i.TargetID] = i
		var err error
		switch {
		case !seen:
			err = c.EmitTargetTargetCreated(ctx, &wire.TargetTargetCreatedEvent{TargetInfo: i})
		case old != i:
			err = c.EmitTargetTargetInfoChanged(ctx,
				&wire.TargetTargetInfoChangedEvent{TargetInfo: i})
		}
		if err != nil {
			return err
		}
	}
	for id := range known {
		if there[id] {
			continue
		}
		delete(known, id)
		if err := c.EmitTargetTargetDestroyed(ctx,
			&wire.TargetTargetDestroyedEvent{TargetID: id}); err != nil {
			return err
		}
	}
	return nil
}

// AttachToTarget implements wire.TargetServer.
func (t *targets) AttachToTarget(ctx context.Context, c *wire.Conn,
	p *wire.TargetAttachToTargetParams) (*wire.TargetAttachToTargetResult, error) {
	if !p.Flatten {
		return nil, turnstone.Errorf(wire.MethodTargetAttachToTarget,
			turnstone.KindInvalid, "flatten",
			"sessions are flat").WithHint("set flatten: true")
	}
	id := turnstone.SandboxID(p.TargetID)
	conn, err := t.b.srv.opt.Backend.Dial(ctx, id)
	if err != nil {
		return nil, err
	}
	s := newSession(t.b, conn)
	s.id, s.target = rand.Text(), id
	if err := t.b.add(s); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if i, err := t.b.srv.opt.Backend.Get(id); err == nil {
		_ = c.EmitTargetAttachedToTarget(ctx,
			&wire.TargetAttachedToTargetEvent{SessionID: s.id, TargetInfo: t.info(i)})
	}
	// The agent's first messages must not precede the answer, which tells the client the session.
	wire.AfterReply(ctx, s.start)
	return &wire.TargetAttachToTargetResult{SessionID: s.id, Channel: int64(s.channel)}, nil
}

// add assigns a channel to a session.
func (b *browser) add(s *session) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions == nil {
		return turnstone.NewError(wire.MethodTargetAttachToTarget, turnstone.KindDead, "connection",
			nil)
	}
	if len(b.sessions) > maxSessions || b.last == 1<<32-1 {
		return turnstone.Errorf(wire.MethodTargetAttachToTarget, turnstone.KindExhausted,
			"sessions of this connection",
			"the limit of %d is reached", maxSessions).
			WithHint("detach from a sandbox, or open another connection")
	}
	own := 0
	for _, o := range b.sessions {
		if o.target == s.target {
			own++
		}
	}
	if own >= maxPerTarget {
		return turnstone.Errorf(wire.MethodTargetAttachToTarget, turnstone.KindExhausted,
			"sessions of this connection with "+string(s.target),
			"the limit of %d is reached", maxPerTarget).
			WithHint("detach from a sandbox; a single session can run many commands concurrently")
	}
	if !b.srv.attach(s.target) {
		return turnstone.Errorf(wire.MethodTargetAttachToTarget, turnstone.KindExhausted,
			"sessions of this server with "+string(s.target),
			"the limit of %d is reached", maxAttached).
			WithHint("wait until another client detaches")
	}
	b.last++
	s.channel = b.last
	b.sessions[s.id], b.channels[s.channel] = s, s
	return nil
}

// DetachFromTarget implements wire.TargetServer.
func (t *targets) DetachFromTarget(_ context.Context, _ *wire.Conn,
	p *wire.TargetDetachFromTargetParams) error {
	s := t.b.find(p.SessionID)
	if s == nil || s.id == "" {
		return turnstone.NewError(wire.MethodTargetDetachFromTarget, turnstone.KindNotFound,
			fmt.Sprintf("session %.80s", p.SessionID),
			nil)
	}
	s.end("")
	return nil
}

// CreateTarget implements wire.TargetServer.
func (t *targets) CreateTarget(ctx context.Context, _ *wire.Conn,
	p *wire.TargetCreateTargetParams) (*wire.TargetCreateTargetResult, error) {
	srv := t.b.srv
	spec, err := specOf(p, srv.opt.Image)
	if err != nil {
		return nil, err
	}
	select {
	case srv.creating <- struct{}{}:
		defer func() { <-srv.creating }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	i, err := srv.opt.Backend.Create(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	return &wire.TargetCreateTargetResult{TargetID: string(i.ID)}, nil
}

// maxTTL is the maximum plausible TTL in seconds: ten years.
const maxTTL = 10 * 366 * 24 * 3600

// specOf validates a client's request.
func specOf(p *wire.TargetCreateTargetParams, image string) (sandboxes.Spec, error) {
	shape := turnstone.DefaultShape()
	if p.CPUs != 0 {
		shape.CPUs = int(p.CPUs)
	}
	if p.Memory != 0 {
		shape.Memory = turnstone.Bytes(p.Memory)
	}
	if p.Disk != 0 {
		shape.Disk = turnstone.Bytes(p.Disk)
	}
	if p.Network != nil {
		shape.Network = *p.Network
	}
	spec := sandboxes.Spec{Name: p.Name, Image: p.Image, Env: p.Env,
		Shape: shape, Substrate: "auto"}
	if spec.Image == "" {
		spec.Image = image
	}
	if !(p.TTL >= 0 && p.TTL <= maxTTL) {
		return spec, turnstone.Errorf(wire.MethodTargetCreateTarget, turnstone.KindInvalid, "ttl",
			"%g seconds are not between 0 and %d", p.TTL, maxTTL)
	}
	spec.TTL = time.Duration(p.TTL * float64(time.Second))
	return spec, spec.Check()
}

// CloseTarget implements wire.TargetServer.
func (t *targets) CloseTarget(ctx context.Context, _ *wire.Conn,
	p *wire.TargetCloseTargetParams) (*wire.TargetCloseTargetResult, error) {
	if err := t.b.srv.opt.Backend.Remove(ctx, turnstone.SandboxID(p.TargetID)); err != nil {
		return nil, err
	}
	return &wire.TargetCloseTargetResult{Success: true}, nil
}
