package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/ahead"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/substrate"
)

// An Ahead is the place of a turn whose sandbox may have been started before it, and that may let the
// next turn's start: see package ahead. A turn without one starts a sandbox, and prepares none.
type Ahead struct {
	Session turnstone.SessionID
	Branch  string

	kind turnstone.Digest // of the turn's sandbox, once Start has begun
}

// AheadOf returns the place of a turn of p on base; nil: the turn needs a sandbox of its own. A client
// that ctx does not name has none, nor has a session that is sealed: its machine would outlive the key.
func AheadOf(ctx context.Context, p *plan.Plan, base Base, session turnstone.SessionID) *Ahead {
	if ahead.From(ctx) == nil || p.Session == "" || p.Home != "" || p.Determinism != nil ||
		p.Lifetime == turnstone.LifetimeSession || p.Live || p.Kept || base.Context == nil ||
		base.Context.Sealed() {
		return nil
	}
	return &Ahead{Session: session, Branch: p.Branch}
}

// kindOf returns a digest of all that cannot be changed in a sandbox of req that runs, and of the
// configuration.
func kindOf(h *host.Host, p *plan.Plan, req *sandbox.Request) (turnstone.Digest, error) {
	configured, err := h.ConfigDigest()
	if err != nil {
		return "", err
	}
	layers := ""
	for _, l := range req.Template.Layers {
		layers += string(l.Tree.Hash) + " "
	}
	b, err := json.Marshal([]any{req.Template.Digest, req.Template.RootDigest, layers,
		req.Template.Env, req.Template.User, req.Image, req.Shape, req.Driver,
		fmt.Sprintf("%+v %+v", req.Needs, req.Kernel), p.Anonymous, configured})
	return turnstone.DigestBytes(b), err
}

// claim returns the sandbox that waits for the turn of su, or nil if there is none that it can use.
// req is the request for its sandbox.
func claim(ctx context.Context, h *host.Host, su Setup, base Base, req *sandbox.Request,
	clock *Stopwatch) *sandbox.Sandbox {
	a, client := su.Ahead, ahead.From(ctx)
	if a == nil || client == nil {
		return nil
	}
	var err error
	if a.kind, err = kindOf(h, su.Plan, req); err != nil || base.State == nil || su.Script != nil {
		return nil
	}
	m, _ := client.Take(ctx, a.Branch, ahead.Key{Session: a.Session, State: base.Parent.State,
		Kind: a.kind}).(*waiting)
	if m == nil {
		return nil
	}
	if err := h.Launcher.Claim(ctx, m.Sandbox, *req,
		session(su.Plan.Cwd, base.State.Env, req.Env)); err != nil {
		client.Lost()
		m.CloseSoon()
		return nil
	}
	clock.Lap("claim")
	return m.Sandbox
}

// Offer lets the sandbox of the turn after t be started, which has ended in the place su.Ahead with a
// state.
func Offer(ctx context.Context, h *host.Host, su Setup, cs *repo.ContextStore, t turnstone.TurnID,
	state turnstone.Digest) {
	a, client := su.Ahead, ahead.From(ctx)
	if a == nil || client == nil || a.kind == "" || state == "" {
		return
	}
	p := *su.Plan // nothing of this turn is for the next
	p.Env, p.Given, p.Add, p.Get = nil, nil, nil, nil
	p.Secrets, p.Net = nil, netplan.Rules{}
	next := &waiting{host: h, plan: &p, at: *a, turn: t, state: state, store: cs,
		ctx: context.WithoutCancel(ctx)}
	client.Offer(ahead.Offer{Key: ahead.Key{Session: a.Session, State: state, Kind: a.kind},
		Branch: a.Branch, Machine: turnstone.Machine{CPUs: p.Shape.CPUs, Memory: p.Shape.Memory,
			Disk: p.Shape.Disk},
		Make: func(ctx context.Context) (ahead.Machine, error) {
			if err := next.start(ctx); err != nil {
				return nil, err
			}
			return next, nil
		}})
}

// waiting is a sandbox on the state of a turn that has ended, before the next turn.
type waiting struct {
	*sandbox.Sandbox
	host  *host.Host
	plan  *plan.Plan // of the turn before
	at    Ahead
	turn  turnstone.TurnID // the turn before
	state turnstone.Digest // that it left
	store *repo.ContextStore
	ctx   context.Context // what its client may read
}

// within returns a context with the values of the client's that ends with ctx.
func (w *waiting) within(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithCancelCause(w.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return own, func() {
		stop()
		cancel(nil)
	}
}

// request returns the request for the sandbox, if it is still what it was offered as.
func (w *waiting) request(ctx context.Context) (sandbox.Request, error) {
	var none sandbox.Request
	facts, err := w.host.Facts()
	if err != nil {
		return none, err
	}
	p := *w.plan
	p.Host, p.Template = facts, nil
	req, err := Request(ctx, w.host, Setup{Plan: &p}, func(string) {}, NewStopwatch())
	if err != nil {
		return none, err
	}
	kind, err := kindOf(w.host, &p, &req)
	if err == nil && kind != w.at.kind {
		err = w.stale("what it is made from has changed")
	}
	return req, err
}

func (w *waiting) stale(why string) error {
	return turnstone.NewError("turn.ahead", turnstone.KindUnavailable, "the next turn of "+
		string(w.at.Session), errors.New(why))
}

// head reports an error if the branch has another head.
func (w *waiting) head(ctx context.Context) error {
	b, err := w.store.DB.Branch(ctx, w.at.Session, w.at.Branch)
	if err == nil && b.Head != w.turn {
		err = w.stale("another turn is its head")
	}
	return err
}

// start starts the sandbox.
func (w *waiting) start(ctx context.Context) error {
	ctx, cancel := w.within(ctx)
	defer cancel()
	if err := w.host.Room(); err != nil {
		return err
	}
	req, err := w.request(ctx)
	if err != nil {
		return err
	}
	if err := w.head(ctx); err != nil {
		return err
	}
	t, err := w.store.Turn(ctx, w.turn)
	if err != nil {
		return err
	}
	base, err := On(ctx, w.store, &t)
	if err != nil {
		return err
	}
	req.Prepare = func(ctx context.Context, m *substrate.Machine) (func(), error) {
		return below(ctx, w.host, Setup{Plan: w.plan}, base, &req, m)
	}
	if w.Sandbox, err = w.host.Launcher.StartAhead(ctx, req); err != nil {
		return err
	}
	if err := rehearse(ctx, w.Client(), req.Template.User); err != nil {
		_ = w.Close()
		return err
	}
	return nil
}

// Check implements ahead.Machine. It looks at what a claim does not: programs of the host, and whether
// the machine answers.
func (w *waiting) Check(ctx context.Context) error {
	ctx, cancel := w.within(ctx)
	defer cancel()
	if w.Ended() {
		return turnstone.Errorf("turn.ahead", turnstone.KindDead, string(w.ID()), "it has ended")
	}
	if err := w.head(ctx); err != nil {
		return err
	}
	req, err := w.request(ctx)
	if err != nil {
		return err
	}
	src, err := w.host.Launcher.Find(ctx, req)
	if err != nil {
		return err
	}
	was, now := w.Origin(), sandbox.OriginOf(src)
	if w.Substrate() != src.Driver.Name() || *was != *now {
		return w.stale("a program of the host has changed")
	}
	return w.Ping(ctx)
}
