package control

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/warm"
	"turnstone.dev/turnstone/sandboxes"
)

var sandboxForm = regexp.MustCompile(`^sb_[0-9a-v]{18}$`)

// Folders of what the service keeps, in the server's folder of a tenant.
const (
	sandboxFolder  = kept.Folder
	snapshotFolder = "snapshots"
)

// record returns what is kept of a sandbox; nil for one of a local command.
func (s *Service) record(st *tenants.State, id turnstone.SandboxID) (*kept.Sandbox, error) {
	dir, err := st.Folder(sandboxFolder)
	if err != nil {
		return nil, err
	}
	return kept.Load(dir, id)
}

func (s *Service) save(st *tenants.State, r *kept.Sandbox) error {
	dir, err := st.Folder(sandboxFolder)
	if err != nil {
		return err
	}
	return r.Save(dir)
}

func (s *Service) forget(st *tenants.State, id turnstone.SandboxID) error {
	dir, err := st.Folder(sandboxFolder)
	if err != nil {
		return err
	}
	return kept.Forget(dir, id)
}

// forgetRemoved removes what is kept of sandboxes that local commands have removed, or that a former
// process did not finish.
func (s *Service) forgetRemoved(st *tenants.State) {
	dir, err := st.Folder(sandboxFolder)
	if err != nil {
		return
	}
	ids, err := kept.List(dir)
	for _, id := range ids {
		if _, gone := st.Sandboxes.Get(id); turnstone.KindOf(gone) == turnstone.KindNotFound {
			err = errors.Join(err, kept.Forget(dir, id))
		}
	}
	if err != nil {
		slog.Warn("what is kept of a removed sandbox stays", "tenant", st.Tenant, "err", err)
	}
}

// sandbox returns a sandbox of the principal's tenant. Another tenant's does not exist.
func (s *Service) sandbox(p *v1.Principal, id string) (*tenants.State, sandboxes.Info, error) {
	st, err := s.find(p, kindSandbox, id)
	if err != nil {
		return nil, sandboxes.Info{}, err
	}
	i, err := st.Sandboxes.Get(turnstone.SandboxID(id))
	return st, i, hide(err, kindSandbox, id)
}

// CreateSandbox creates a sandbox. The same ID with the same request answers the same sandbox.
func (s *Service) CreateSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceCreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	p, q, id := r.Msg.Principal, r.Msg.Request, turnstone.SandboxID(r.Msg.SandboxId)
	who, err := s.caller(ctx, p, q, q.Client)
	if err != nil {
		return nil, err
	}
	if q.Client == nil && (q.ContextId != "" || q.Owner != "") {
		return nil, turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "client",
			"is missing: a sandbox of a session, or with an owner, has a client key")
	}
	if q.ContextId != "" || q.GetSnapshotId() != "" {
		if err := noOwner("sandbox.create", q.Owner,
			"a sandbox of a session or a snapshot"); err != nil {
			return nil, err
		}
	}
	st, err := s.o.Tenants.Of(ctx, p.Tenant)
	if err != nil {
		return nil, exhausted(err)
	}
	release, err := s.busy.acquire(ctx, string(id))
	if err != nil {
		return nil, err
	}
	defer release()
	if q.ContextId == "" {
		r.Msg.SessionId = "" // a controller puts nothing into a session that the caller did not name
	}
	rec := &kept.Sandbox{ID: id, Request: api.RequestDigest(q), Metadata: q.Metadata, Managed: q.ManagedBy,
		Context: q.ContextId, Session: turnstone.SessionID(r.Msg.SessionId),
		From:   q.GetSnapshotId(),
		Holder: kept.Holder{Client: who.key, Owner: q.Owner, Open: q.Client == nil}}
	made := &creation{began: time.Now()}
	have, err := s.created(st, rec)
	if err != nil {
		return nil, err
	}
	if have == nil {
		spec, err := s.spec(ctx, st, q, rec, who)
		if err != nil {
			return nil, err
		}
		if q.Client != nil {
			client, _, err := s.client(p, q.Client, q.Owner)
			if err != nil {
				return nil, err
			}
			made.client = &client
		}
		if have, err = s.create(ctx, st, rec, spec, made); err != nil {
			return nil, err
		}
	}
	out := &v1.CreateSandboxResponse{Channel: made.channel}
	if out.Channel != nil {
		out.Sandbox = s.noteSandbox(st, *have)
	} else {
		began := time.Now()
		if out, err = s.answer(ctx, st, *have, q.Client, p, q.Owner); err != nil {
			return nil, err
		}
		made.add("seal", began)
	}
	out.Phases = made.phases
	slog.Debug("sandbox created", "sandbox", id, "phases", made)
	return connect.NewResponse(out), nil
}

// created returns the sandbox that an earlier call has created for the same request; nil if there is
// none. The error is of kind Invalid if the ID was used for another request.
func (s *Service) created(st *tenants.State, rec *kept.Sandbox) (*sandboxes.Info, error) {
	was, err := s.record(st, rec.ID)
	if err != nil {
		return nil, err
	}
	if was != nil && was.Request != rec.Request {
		return nil, used(rec.ID)
	}
	// IDs are the same for no two tenants: a channel's path has no tenant in it.
	at, err := s.o.Tenants.Holding(rec.ID)
	if err != nil {
		return nil, nil // none has it
	}
	if was == nil || at != st {
		return nil, used(rec.ID)
	}
	i, err := st.Sandboxes.Get(rec.ID)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, nil // it was removed meanwhile
	}
	return &i, err
}

func used(id turnstone.SandboxID) error {
	return turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "sandbox "+string(id),
		"exists, and another request has created it")
}

// create creates a sandbox, with its record, of one that waits if there is one. If it fails, neither
// remains.
func (s *Service) create(ctx context.Context, st *tenants.State, rec *kept.Sandbox,
	spec sandboxes.Spec, made *creation) (*sandboxes.Info, error) {
	taken, err := s.warm.Take(ctx, st, spec) // before it needs room: the queue may be long
	if err != nil && !warm.Cold(err) {
		return nil, exhausted(err)
	}
	i, err := s.make(ctx, st, rec, spec, taken, made)
	if err != nil {
		return nil, err
	}
	s.noteSandbox(st, *i)
	s.followSandbox(st, i.ID)
	return i, nil
}

// make is create with a sandbox that was taken from those that wait; nil: none.
func (s *Service) make(ctx context.Context, st *tenants.State, rec *kept.Sandbox,
	spec sandboxes.Spec, taken *warm.Taken, made *creation) (*sandboxes.Info, error) {
	free, err := s.take(turnstone.Machine{CPUs: spec.Shape.CPUs, Memory: spec.Shape.Memory,
		Disk: spec.Shape.Disk}, string(rec.ID))
	if err != nil {
		return nil, errors.Join(err, taken.Close())
	}
	defer free()
	spec.ID = rec.ID
	var i sandboxes.Info
	if taken != nil {
		if i, err = s.claim(ctx, st, rec, taken, spec, made); err == nil {
			return &i, nil
		}
	}
	if taken == nil || warm.Cold(err) {
		began := time.Now()
		if err = s.save(st, rec); err == nil {
			made.add("record", began)
			began = time.Now()
			if err = st.Refresh(ctx); err == nil {
				i, err = st.Sandboxes.Create(ctx, spec, nil)
			}
			made.add("create", began)
		}
	}
	if err != nil {
		return nil, errors.Join(exhausted(err), s.forget(st, rec.ID))
	}
	return &i, nil
}

// answer returns a sandbox with its channel, unless the sandbox has ended.
func (s *Service) answer(ctx context.Context, st *tenants.State, i sandboxes.Info,
	c *v1.ChannelClient, p *v1.Principal, owner string) (*v1.CreateSandboxResponse, error) {
	out := &v1.CreateSandboxResponse{Sandbox: s.noteSandbox(st, i)}
	if c == nil || i.State.Final() {
		return out, nil
	}
	client, _, err := s.client(p, c, owner)
	if err == nil {
		out.Channel, err = s.attestSandbox(ctx, i.ID, client)
	}
	return out, err
}

// image returns the name of what a sandbox starts from; empty: the default.
func image(q *v1.CreateSandboxRequest) string { return cmp.Or(q.GetTemplate(), q.GetImage()) }

// environment returns variables in a fixed order.
func environment(env map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}

// lifetime returns the time to a sandbox's stop.
func (s *Service) lifetime(asked time.Duration) time.Duration {
	return min(cmp.Or(asked, s.o.Lifetime), s.o.LongestLifetime)
}

// ConnectSandbox signs a statement for a client that may open the sandbox's channel.
func (s *Service) ConnectSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectSandboxRequest]) (
	*connect.Response[v1.ConnectSandboxResponse], error) {
	p, q := r.Msg.Principal, r.Msg.Request
	who, err := s.connecting(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	st, i, err := s.sandbox(p, q.SandboxId)
	if err != nil {
		return nil, err
	}
	may, err := s.mayOpen(ctx, st, who, i, q.Client)
	if err != nil {
		return nil, err
	}
	if i.State.Final() {
		return nil, turnstone.Errorf("sandbox.attest", turnstone.KindDead,
			"sandbox "+q.SandboxId, "it is %s", i.State)
	}
	client, _, err := s.client(p, q.Client, may.owner)
	if err != nil {
		return nil, err
	}
	client.Until = may.until
	c, err := s.attestSandbox(ctx, i.ID, client)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectSandboxResponse{Channel: c}), nil
}

// connecting returns who asks to open a sandbox's channel: by that call, or by the repetition of the
// one that created the sandbox.
func (s *Service) connecting(ctx context.Context, r *v1.NodeServiceConnectSandboxRequest) (caller,
	error) {
	var made proto.Message = r.Request
	switch {
	case r.GetCreate() != nil:
		made = r.GetCreate()
	case r.GetFork() != nil:
		made = r.GetFork()
	}
	who, err := s.caller(ctx, r.Principal, made, r.Request.Client)
	if err != nil || made == proto.Message(r.Request) || who.operator {
		return who, err
	}
	st, _, err := s.sandbox(r.Principal, r.Request.SandboxId)
	if err != nil {
		return who, err
	}
	rec, err := s.record(st, turnstone.SandboxID(r.Request.SandboxId))
	if err == nil && (rec == nil || rec.Request != api.RequestDigest(made)) {
		err = missing(kindSandbox, r.Request.SandboxId)
	}
	return who, err
}

// A permit says how a client may open the channel of a sandbox.
type permit struct {
	owner string    // of the sandbox
	until time.Time // when the right ends; zero: with the sandbox
}

// mayOpen returns nil if a client may open the channel of a sandbox: by the key that created it, by
// a grant of its owner, or as the operator if a local command has created it. Whoever authorised
// the call has no say in this.
func (s *Service) mayOpen(ctx context.Context, st *tenants.State, who caller,
	i sandboxes.Info, c *v1.ChannelClient) (permit, error) {
	release, err := s.busy.acquire(ctx, string(i.ID))
	if err != nil {
		return permit{}, err
	}
	defer release()
	rec, err := s.record(st, i.ID)
	if err != nil {
		return permit{}, err
	}
	if rec == nil {
		if who.operator {
			return permit{}, nil
		}
		return permit{}, (&kept.Holder{}).May(who.key, time.Now())
	}
	if len(c.Grant) > 0 {
		if err := s.admit(ctx, st, rec, i, c.Grant); err != nil {
			return permit{}, err
		}
	}
	return permit{rec.Owner, rec.Until(who.key)}, rec.May(who.key, time.Now())
}

// admit lets a grant of the owner take effect. Statements of a client that it withdraws end first.
func (s *Service) admit(ctx context.Context, st *tenants.State, rec *kept.Sandbox,
	i sandboxes.Info, grant []byte) error {
	now, before := time.Now(), rec.Admitted
	changed, err := rec.Admit(ctx, i.ID, grant, now)
	if err != nil || !changed {
		return err
	}
	// an agent that is suspended or gone knows no statement
	if gone := rec.Withdrawn(before, now); gone != nil && !i.Paused && !i.State.Final() {
		if err := s.o.Node.Withdraw(ctx, i.ID, *gone); err != nil {
			return err
		}
	}
	return s.save(st, rec)
}

// DeleteSandbox stops a sandbox and removes it.
func (s *Service) DeleteSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteSandboxRequest]) (
	*connect.Response[v1.DeleteSandboxResponse], error) {
	id := r.Msg.Request.SandboxId
	who, err := s.caller(ctx, r.Msg.Principal, r.Msg.Request, r.Msg.Request.Client)
	if err != nil {
		return nil, err
	}
	release, err := s.busy.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	st, i, err := s.sandbox(r.Msg.Principal, id)
	if err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
		return nil, err
	}
	if err := s.mayControl("sandbox.delete", who, st, turnstone.SandboxID(id)); err != nil {
		return nil, err
	}
	if err == nil {
		if err := st.Sandboxes.Stop(ctx, i.ID); err != nil {
			return nil, hide(err, kindSandbox, id)
		}
		if i, err = st.Sandboxes.Get(i.ID); err != nil {
			return nil, hide(err, kindSandbox, id)
		}
	}
	i.ID = turnstone.SandboxID(id)
	last := s.noteSandbox(st, i)
	s.closePorts(st, i.ID)
	if err := st.Sandboxes.Remove(ctx, i.ID); err != nil {
		return nil, hide(err, kindSandbox, id)
	}
	s.board.drop(name{kindSandbox, st.Tenant, id})
	if err := s.forget(st, i.ID); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DeleteSandboxResponse{Sandbox: last}), nil
}

// A controlRequest is a call about one sandbox.
type controlRequest interface {
	proto.Message
	GetSandboxId() string
	GetClient() *v1.ChannelClient
}

// control calls f with the control of a sandbox, and returns the sandbox afterwards.
func (s *Service) control(ctx context.Context, p *v1.Principal, q controlRequest,
	f func(*sandboxes.Control) error) (*v1.Sandbox, error) {
	id := q.GetSandboxId()
	who, err := s.caller(ctx, p, q, q.GetClient())
	if err != nil {
		return nil, err
	}
	release, err := s.busy.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	st, i, err := s.sandbox(p, id)
	if err != nil {
		return nil, err
	}
	if err := s.mayControl("sandbox.control", who, st, i.ID); err != nil {
		return nil, err
	}
	c, err := st.Sandboxes.Control(ctx, i.ID)
	if err != nil {
		return nil, hide(err, kindSandbox, id)
	}
	defer func() { _ = c.Close() }()
	if err := f(c); err != nil {
		return nil, hide(err, kindSandbox, id)
	}
	if i, err = st.Sandboxes.Get(i.ID); err != nil {
		return nil, hide(err, kindSandbox, id)
	}
	return s.noteSandbox(st, i), nil
}

// PauseSandbox pauses a machine; its channels end.
func (s *Service) PauseSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServicePauseSandboxRequest]) (
	*connect.Response[v1.PauseSandboxResponse], error) {
	sb, err := s.control(ctx, r.Msg.Principal, r.Msg.Request,
		func(c *sandboxes.Control) error {
			_, err := c.Pause(ctx)
			return err
		})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.PauseSandboxResponse{Sandbox: sb}), nil
}

// ResumeSandbox resumes a paused machine.
func (s *Service) ResumeSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceResumeSandboxRequest]) (
	*connect.Response[v1.ResumeSandboxResponse], error) {
	sb, err := s.control(ctx, r.Msg.Principal, r.Msg.Request,
		func(c *sandboxes.Control) error { return c.Resume(ctx) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ResumeSandboxResponse{Sandbox: sb}), nil
}

// SetSandboxTimeout sets the time from now to a sandbox's stop.
func (s *Service) SetSandboxTimeout(ctx context.Context,
	r *connect.Request[v1.NodeServiceSetSandboxTimeoutRequest]) (
	*connect.Response[v1.SetSandboxTimeoutResponse], error) {
	q := r.Msg.Request
	sb, err := s.control(ctx, r.Msg.Principal, q, func(c *sandboxes.Control) error {
		return c.SetTTL(ctx, s.lifetime(q.Timeout.AsDuration()))
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SetSandboxTimeoutResponse{Sandbox: sb}), nil
}
