package control

import (
	"context"
	"log/slog"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// maxBuilds bounds the builds of templates that run at the same time.
const maxBuilds = 4

// A build is the last build of a template.
type build struct {
	running bool
	err     error // of a build that has ended
}

// BuildTemplate begins to build a template, and answers at once. Templates of the program are built
// once for all tenants, others in their tenant's state.
func (s *Service) BuildTemplate(ctx context.Context,
	r *connect.Request[v1.NodeServiceBuildTemplateRequest]) (
	*connect.Response[v1.BuildTemplateResponse], error) {
	p, ref := r.Msg.Principal, r.Msg.Request.Template
	st, err := s.o.Tenants.Of(ctx, p.Tenant)
	if err != nil {
		return nil, exhausted(err)
	}
	if s.shared(ctx, ref) {
		st = s.o.Tenants.Shared()
	}
	t, err := s.template(ctx, st, ref)
	if err != nil && !tenants.IsImage(ref) {
		return nil, hide(err, kindTemplate, ref)
	}
	if t == nil {
		t = &v1.Template{Name: ref, State: v1.TemplateState_TEMPLATE_STATE_MISSING}
	}
	if t.State != v1.TemplateState_TEMPLATE_STATE_BUILT {
		if err := st.Room(); err != nil {
			return nil, exhausted(err)
		}
		if err := s.build(st, ref, !s.operator(p)); err != nil {
			return nil, err
		}
		t.State = v1.TemplateState_TEMPLATE_STATE_BUILDING
	}
	s.noteTemplate(st, t)
	return connect.NewResponse(&v1.BuildTemplateResponse{Template: t}), nil
}

// build builds a template in the background, unless it is being built.
func (s *Service) build(st *tenants.State, ref string, stranger bool) error {
	n := name{kindTemplate, st.Tenant, ref}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.builds[n]; b != nil && b.running {
		return nil
	}
	running := 0
	for _, b := range s.builds {
		if b.running {
			running++
		}
	}
	if running >= maxBuilds {
		return exhausted(turnstone.Errorf("template.build", turnstone.KindExhausted, "the node",
			"builds %d templates, and may build no more", running))
	}
	if s.ctx.Err() != nil {
		return turnstone.Errorf("template.build", turnstone.KindUnavailable, "the node", "stops")
	}
	b := &build{running: true}
	s.builds[n] = b
	ctx, done := context.WithCancel(s.ctx)
	s.o.Tenants.Use(ctx, st)
	s.wg.Go(func() {
		defer done()
		_, err := st.Executor.EnsureTemplate(ctx, ref, stranger, nil)
		s.mu.Lock()
		b.running, b.err = false, err
		if err == nil {
			delete(s.builds, n)
		}
		s.mu.Unlock()
		if err != nil && s.ctx.Err() == nil {
			slog.Info("a template was not built", "tenant", st.Tenant, "template", ref,
				"kind", turnstone.KindOf(err))
		}
		if t, err := s.template(s.ctx, st, ref); err == nil {
			s.noteTemplate(st, t)
		} else {
			s.noteTemplate(st, &v1.Template{Name: ref,
				State: v1.TemplateState_TEMPLATE_STATE_FAILED})
		}
	})
	return nil
}

// buildForPool begins to build the template of sandboxes that wait.
func (s *Service) buildForPool(ctx context.Context, st *tenants.State, ref string) error {
	if s.shared(ctx, ref) {
		st = s.o.Tenants.Shared()
	}
	if err := st.Room(); err != nil {
		return err
	}
	return s.build(st, ref, true)
}

// template describes a template of a tenant, with the state of its build.
func (s *Service) template(ctx context.Context, st *tenants.State, ref string) (*v1.Template, error) {
	d, err := st.Templates.Show(ctx, ref)
	if err != nil {
		return nil, err
	}
	shape := d.Spec.Machine.Shape(turnstone.DefaultShape())
	t := &v1.Template{Name: ref, Digest: string(d.Digest), Size: uint64(d.Size),
		Built: stamp(d.Built), State: v1.TemplateState_TEMPLATE_STATE_MISSING,
		Machine: machineOf(turnstone.Machine{CPUs: shape.CPUs, Memory: shape.Memory,
			Disk: shape.Disk})}
	if d.Ready {
		t.State = v1.TemplateState_TEMPLATE_STATE_BUILT
		return t, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch b := s.builds[name{kindTemplate, st.Tenant, ref}]; {
	case b != nil && b.running:
		t.State = v1.TemplateState_TEMPLATE_STATE_BUILDING
	case b != nil && b.err != nil:
		t.State = v1.TemplateState_TEMPLATE_STATE_FAILED
	}
	return t, nil
}

// noteTemplate puts a template on the board. It has no tenant there, so that only those of the
// operator are shown: the others' names are theirs.
func (s *Service) noteTemplate(st *tenants.State, t *v1.Template) {
	if st.Operator() {
		s.board.set(name{kindTemplate, "", t.Name}, &v1.WatchNodeResponse{
			Object: &v1.WatchNodeResponse_Template{Template: t}})
	}
}

// lookTemplates puts the operator's templates on the board.
func (s *Service) lookTemplates(ctx context.Context) {
	st := s.o.Tenants.Shared()
	names, err := st.Templates.Names()
	if err != nil {
		slog.Warn("templates cannot be listed", "err", err)
		return
	}
	known := make(map[string]bool)
	for _, ref := range names {
		if t, err := s.template(ctx, st, ref); err == nil {
			known[ref] = true
			s.noteTemplate(st, t)
		}
	}
	s.mu.Lock()
	for n := range s.builds {
		if n.tenant == st.Tenant {
			known[n.id] = true
		}
	}
	s.mu.Unlock()
	s.board.keep(kindTemplate, "", known)
}

// shared reports whether a template is part of the program.
func (s *Service) shared(ctx context.Context, ref string) bool {
	d, err := s.o.Tenants.Shared().Templates.Show(ctx, ref)
	return err == nil && d.BuiltIn // what is wrong with ref, the tenant's templates explain
}

// DeleteTemplate removes the build of a template that nothing needs. Templates of the program are
// the operator's to remove, and those that a client built from a spec are the client's: the call
// proves no key, and the node's channel does.
func (s *Service) DeleteTemplate(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteTemplateRequest]) (
	*connect.Response[v1.DeleteTemplateResponse], error) {
	p, ref := r.Msg.Principal, r.Msg.Request.Template
	st, err := s.find(p, kindTemplate, ref)
	if err != nil {
		return nil, err
	}
	object := owners.Template(ref)
	owned, err := st.Owners.Owned(object)
	if err != nil {
		return nil, err
	}
	if owned && !s.operator(p) {
		return nil, denied("template.remove", kindTemplate, ref, "belongs to a client key, and the "+
			"call proves none", "remove it with turn template rm and the client key that built it")
	}
	if s.shared(ctx, ref) && !st.Operator() {
		return nil, turnstone.Errorf("template.remove", turnstone.KindInvalid, "template "+ref,
			"is part of the node, for all its tenants")
	}
	t, err := s.template(ctx, st, ref)
	if err != nil {
		return nil, hide(err, kindTemplate, ref)
	}
	if _, err := st.RemoveTemplate(ctx, ref); err != nil {
		return nil, hide(err, kindTemplate, ref)
	}
	if owned {
		if err := st.Owners.Forget(object); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	delete(s.builds, name{kindTemplate, st.Tenant, ref})
	s.mu.Unlock()
	s.lookTemplates(ctx)
	t.State, t.Size, t.Built = v1.TemplateState_TEMPLATE_STATE_MISSING, 0, nil
	return connect.NewResponse(&v1.DeleteTemplateResponse{Template: t}), nil
}

// ConnectTemplates signs a statement about the node's channel.
func (s *Service) ConnectTemplates(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectTemplatesRequest]) (
	*connect.Response[v1.ConnectTemplatesResponse], error) {
	if _, err := s.caller(ctx, r.Msg.Principal, r.Msg.Request, r.Msg.Request.Client); err != nil {
		return nil, err
	}
	client, _, err := s.client(r.Msg.Principal, r.Msg.Request.Client, "")
	if err != nil {
		return nil, err
	}
	c, err := s.attestNode(ctx, client)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectTemplatesResponse{Channel: c}), nil
}
