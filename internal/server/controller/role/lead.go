package role

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/election"
	"turnstone.dev/turnstone/internal/server/records"
)

// keyEvery is the time between two looks whether the key of tokens was rotated.
const keyEvery = time.Second

// elect waits for the lease of the database in the background, and leads whenever it has it.
func (r *Role) elect(ctx context.Context) error {
	c := r.o.Config
	lease, err := records.OpenLease(ctx, c.Records.Database, r.records())
	if err != nil {
		return err
	}
	issuer, err := r.issuer(ctx)
	if err != nil {
		return errors.Join(err, lease.Close())
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	checked := "" // a leader stores its key a moment after it leads, and may rotate it later
	waits := func(t records.Term) {
		r.standby.see(t)
		call, end := context.WithTimeout(ctx, c.Records.Lease)
		last, err := lease.Key(call)
		end()
		if err != nil || last == checked {
			return
		}
		checked = last // early: the change of leaders is no good time to learn of it
		if !r.knows(issuer, last) {
			r.o.Log.Error("this controller could not lead", "error", r.foreign())
		}
	}
	r.close = append(r.close, func() error {
		stop()
		r.election.Wait()
		return lease.Close()
	})
	r.election.Go(func() {
		election.Run(ctx, election.Options{Lease: lease, Holder: c.Machine.Name,
			Address: c.Peers.Address, Life: c.Records.Lease, Log: r.o.Log, Waits: waits,
			Serve: func(ctx context.Context, t *election.Term) error { return r.lead(ctx, lease, t) }})
	})
	return nil
}

// lead is the controller in a term, until ctx ends. What it has begun at nodes may still end: nodes
// report what became of it to the next leader.
func (r *Role) lead(ctx context.Context, lease *records.Lease, t *election.Term) (err error) {
	o := r.records()
	o.Fence = t.Fence
	store, err := records.Open(ctx, r.o.Config.Records.Database, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	issuer, err := r.issuer(ctx)
	if err != nil {
		return err
	}
	key, err := r.checkKey(ctx, lease, t.Fence, issuer)
	if err != nil {
		return err
	}
	g := &reign{store: store, term: t}
	if err := r.begin(ctx, g, issuer); err != nil {
		return err
	}
	r.note(t.Fence, "controller.lead")
	look := time.NewTicker(keyEvery)
	defer look.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-look.C:
			if now := issuer.Keys()[0].ID; now != key && lease.SetKey(ctx, t.Fence, now) == nil {
				key = now
			}
		}
	}
	r.answers.Store(nil)
	if !t.Valid() {
		store.Halt() // at once: the database does not answer, or has a newer leader
	}
	if err := g.Close(); err != nil && t.Valid() {
		return err
	}
	r.note(t.Fence, "controller.end")
	return nil
}

// checkKey refuses to lead with a key of tokens that verifiers of the last leader's tokens would not
// get, and stores the thumbprint of the key.
func (r *Role) checkKey(ctx context.Context, lease *records.Lease, fence int64, issuer *auth.Issuer) (
	string, error) {
	last, err := lease.Key(ctx)
	if err != nil {
		return "", err
	}
	if !r.knows(issuer, last) {
		return "", r.foreign()
	}
	now := issuer.Keys()[0].ID
	return now, lease.SetKey(ctx, fence, now)
}

// knows reports whether the issuer publishes the key of the last leader, or may replace it.
func (r *Role) knows(issuer *auth.Issuer, last string) bool {
	known := last == "" || r.o.Config.Tokens.Replace == config.On
	for _, k := range issuer.Keys() {
		known = known || k.ID == last
	}
	return known
}

func (r *Role) foreign() error {
	return turnstone.Errorf("controller.lead", turnstone.KindInvalid, r.o.Config.Tokens.Key,
		"is not the key of tokens that the leader had, so its tokens would end").
		WithHint("copy tokens.key, and the file with .old after its name, from the leader, or set " +
			"tokens.replace to on")
}

// note writes the begin or the end of a term to the audit log.
func (r *Role) note(fence int64, method string) {
	err := r.log.Append(audit.Entry{Method: method, Outcome: audit.Done, Fence: fence})
	if err != nil {
		r.o.Log.Error("the term is not in the audit log", "error", err)
	}
}

// A standby answers calls while this controller does not lead.
type standby struct {
	writer *connect.ErrorWriter
	leader atomic.Pointer[string]
}

func (s *standby) init() { s.writer = connect.NewErrorWriter(serve.HandlerOptions(nil)...) }

// see notes who leads.
func (s *standby) see(t records.Term) {
	name := t.Holder
	if t.Address != "" {
		name += " at " + t.Address
	}
	s.leader.Store(&name)
}

// error is the answer. Only an operator gets the leader's name, which has addresses of the server's
// own network.
func (s *standby) error(operator bool) error {
	name := "another controller"
	if p := s.leader.Load(); p != nil && operator {
		name = *p
	}
	return &api.Status{RetryAfter: time.Second, Err: turnstone.Errorf("controller.call",
		turnstone.KindUnavailable, "the controller", "waits as a standby; %s leads", name).
		WithHint("ask the leader; with several addresses in peers.controller other roles find it")}
}

// ServeHTTP answers in the caller's protocol.
func (s *standby) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	p, known := auth.FromContext(q.Context())
	e := api.ToConnect(s.error(known && p.Issuer == ""))
	e.Meta().Del("Retry-After")
	w.Header().Set("Retry-After", "1")
	_ = s.writer.Write(w, q, e) // the caller has gone
}
