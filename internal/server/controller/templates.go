package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/message"
)

// A templateService serves TemplateService. Templates belong to no tenant: nodes report them, and
// a token's patterns say which of them its caller sees.
type templateService struct{ *Controller }

// rank orders the states of a template on several nodes: the best one counts.
var rank = map[v1.TemplateState]int{v1.TemplateState_TEMPLATE_STATE_BUILT: 4,
	v1.TemplateState_TEMPLATE_STATE_BUILDING: 3, v1.TemplateState_TEMPLATE_STATE_FAILED: 2,
	v1.TemplateState_TEMPLATE_STATE_MISSING: 1}

// templates returns the templates of all nodes that are up, by name. The messages are not changed.
func (r *registry) templates() map[string]*v1.Template {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]*v1.Template{}
	names := make([]string, 0, len(r.all))
	for name := range r.all {
		names = append(names, name)
	}
	slices.Sort(names) // of two equal ones always the same
	for _, name := range names {
		n := r.all[name]
		if !r.answers(n) {
			continue
		}
		for name, t := range n.templates {
			if have := all[name]; have == nil || rank[t.State] > rank[have.State] {
				all[name] = t
			}
		}
	}
	return all
}

// holders returns the names of the nodes that have a template in one of these states.
func (r *registry) holders(template string, states ...v1.TemplateState) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, n := range r.all {
		if t := n.templates[template]; r.answers(n) && t != nil && slices.Contains(states, t.State) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// visible returns the templates of a filter that the caller may see, from new to old.
func (c *Controller) visible(p auth.Principal, f *v1.TemplateFilter) (all []*v1.Template) {
	for name, t := range c.nodes.templates() {
		if strings.HasPrefix(name, f.GetNamePrefix()) &&
			(len(f.GetStates()) == 0 || slices.Contains(f.GetStates(), t.State)) &&
			p.Sees(auth.Owner{Tenant: p.Tenant, Template: name}) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *v1.Template) int {
		return cmp.Or(message.Instant(b.Built).Compare(message.Instant(a.Built)),
			strings.Compare(a.Name, b.Name))
	})
	return all
}

// template is find for a template.
func (c *Controller) template(op turnstone.Op, p auth.Principal, scope auth.Scope, name string) (
	*v1.Template, error) {
	if err := p.Allow(auth.Request{Scope: scope, Template: name}); err != nil {
		return nil, err
	}
	t := c.nodes.templates()[name]
	if t == nil {
		return nil, p.See(op, name, auth.Owner{})
	}
	return t, nil
}

// GetTemplate implements turnstonev1connect.TemplateServiceHandler.
func (c templateService) GetTemplate(ctx context.Context,
	r *connect.Request[v1.GetTemplateRequest]) (*connect.Response[v1.GetTemplateResponse], error) {
	t, err := c.template("template.get", guard.Caller(ctx), auth.TemplatesRead, r.Msg.Template)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetTemplateResponse{Template: t}), nil
}

// ListTemplates implements turnstonev1connect.TemplateServiceHandler.
func (c templateService) ListTemplates(ctx context.Context,
	r *connect.Request[v1.ListTemplatesRequest]) (*connect.Response[v1.ListTemplatesResponse],
	error) {
	all := c.visible(guard.Caller(ctx), r.Msg.Filter)
	size := int(r.Msg.Page.GetSize())
	if size == 0 {
		size = 50
	}
	if token := r.Msg.Page.GetToken(); token != "" {
		i, err := after(all, token)
		if err != nil {
			return nil, err
		}
		all = all[i:]
	}
	answer := &v1.ListTemplatesResponse{Templates: all}
	if len(all) > size {
		answer.Templates, answer.NextPageToken = all[:size], tokenOf(all[size-1])
	}
	return connect.NewResponse(answer), nil
}

// tokenOf returns the token of the page after a template: the time when it was built, and a digest
// of its name, which may be too long for a token.
func tokenOf(t *v1.Template) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(message.Instant(t.Built).UnixNano()))
	sum := sha256.Sum256([]byte(t.Name))
	return base64.RawURLEncoding.EncodeToString(append(b, sum[:16]...))
}

// after returns the place after a token's template in a list. If the template is gone, that is
// where older ones begin. The token holds nothing that its caller may not know.
func after(all []*v1.Template, token string) (int, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 24 {
		return 0, turnstone.Errorf("template.list", turnstone.KindInvalid, "the page",
			"the token is not of this list").
			WithHint("use the token of the page before, with the same filter")
	}
	for i, t := range all {
		if tokenOf(t) == token {
			return i + 1, nil
		}
	}
	built := int64(binary.BigEndian.Uint64(b))
	i := slices.IndexFunc(all, func(t *v1.Template) bool {
		return message.Instant(t.Built).UnixNano() < built
	})
	if i < 0 {
		i = len(all)
	}
	return i, nil
}

// WatchTemplates implements turnstonev1connect.TemplateServiceHandler.
func (c templateService) WatchTemplates(ctx context.Context,
	r *connect.Request[v1.WatchTemplatesRequest],
	stream *connect.ServerStream[v1.WatchTemplatesResponse]) error {
	p := guard.Caller(ctx)
	w, leave, err := c.hub.join("", "")
	if err != nil {
		return err
	}
	defer leave()
	known := map[string]*v1.Template{}
	send := func(e v1.WatchEvent, t *v1.Template) error {
		return stream.Send(&v1.WatchTemplatesResponse{Event: e, Template: t})
	}
	update := func(event v1.WatchEvent) error {
		now := map[string]*v1.Template{}
		for _, t := range c.visible(p, r.Msg.Filter) {
			now[t.Name] = t
			if proto.Equal(known[t.Name], t) {
				continue
			}
			if err := send(event, t); err != nil {
				return err
			}
		}
		for name, t := range known {
			if now[name] != nil {
				continue
			}
			if err := send(v1.WatchEvent_WATCH_EVENT_DELETED, t); err != nil {
				return err
			}
		}
		known = now
		return nil
	}
	return c.attend(ctx, p, w, func(e v1.WatchEvent, _ *message.Seen) error { return send(e, nil) },
		func() error { return update(v1.WatchEvent_WATCH_EVENT_LISTED) },
		func() error {
			w.take()
			return update(v1.WatchEvent_WATCH_EVENT_CHANGED)
		})
}

// BuildTemplate implements turnstonev1connect.TemplateServiceHandler.
func (c templateService) BuildTemplate(ctx context.Context,
	r *connect.Request[v1.BuildTemplateRequest]) (*connect.Response[v1.BuildTemplateResponse],
	error) {
	p, name := guard.Caller(ctx), r.Msg.Template
	err := p.Allow(auth.Request{Scope: auth.TemplatesWrite, Template: name})
	if err != nil {
		return nil, err
	}
	var node string
	if have := c.nodes.holders(name, v1.TemplateState_TEMPLATE_STATE_BUILT,
		v1.TemplateState_TEMPLATE_STATE_BUILDING); len(have) > 0 {
		node = have[0] // which says that it is built already
	} else if node, err = c.nodes.able(name); err != nil {
		return nil, err
	}
	client, err := c.at(node)
	if err != nil {
		return nil, err
	}
	ctx, end := c.call(ctx)
	defer end()
	answer, err := client.BuildTemplate(ctx, connect.NewRequest(
		&v1.NodeServiceBuildTemplateRequest{Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	if answer.Msg.Template.GetName() == "" {
		return nil, wrong(node)
	}
	return connect.NewResponse(answer.Msg), nil
}

// DeleteTemplate implements turnstonev1connect.TemplateServiceHandler. It asks each node that has
// a build.
func (c templateService) DeleteTemplate(ctx context.Context,
	r *connect.Request[v1.DeleteTemplateRequest]) (*connect.Response[v1.DeleteTemplateResponse],
	error) {
	p, name := guard.Caller(ctx), r.Msg.Template
	t, err := c.template("template.delete", p, auth.TemplatesWrite, name)
	if err != nil {
		return nil, err
	}
	ctx, end := c.call(ctx)
	defer end()
	for _, node := range c.nodes.holders(name, v1.TemplateState_TEMPLATE_STATE_BUILT,
		v1.TemplateState_TEMPLATE_STATE_FAILED, v1.TemplateState_TEMPLATE_STATE_BUILDING) {
		client, err := c.at(node)
		if err != nil {
			return nil, err
		}
		answer, err := client.DeleteTemplate(ctx, connect.NewRequest(
			&v1.NodeServiceDeleteTemplateRequest{Principal: message.Principal(p), Request: r.Msg}))
		if isNotFound(err) {
			continue
		} else if err != nil {
			return nil, asked(err)
		}
		if answer.Msg.Template != nil {
			t = answer.Msg.Template
		}
	}
	return connect.NewResponse(&v1.DeleteTemplateResponse{Template: t}), nil
}

// ConnectTemplates implements turnstonev1connect.TemplateServiceHandler.
func (c templateService) ConnectTemplates(ctx context.Context,
	r *connect.Request[v1.ConnectTemplatesRequest]) (
	*connect.Response[v1.ConnectTemplatesResponse], error) {
	p := guard.Caller(ctx)
	node, err := c.nodes.able("")
	if err != nil {
		return nil, err
	}
	client, err := c.at(node)
	if err != nil {
		return nil, err
	}
	ctx, end := c.call(ctx)
	defer end()
	answer, err := client.ConnectTemplates(ctx, connect.NewRequest(
		&v1.NodeServiceConnectTemplatesRequest{Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	return connect.NewResponse(answer.Msg), nil
}
