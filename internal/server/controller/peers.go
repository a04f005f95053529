package controller

import (
	"cmp"
	"context"
	"net/http"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/message"
)

// A peerService serves ControllerService.
type peerService struct{ *Controller }

func (c *Controller) peerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewControllerServiceHandler(peerService{c},
		serve.HandlerOptions(c.report, c.around(guard.Refusals{})...)...))
	return mux
}

// RegisterNode implements turnstonev1connect.ControllerServiceHandler.
func (c peerService) RegisterNode(ctx context.Context,
	r *connect.Request[v1.RegisterNodeRequest]) (*connect.Response[v1.RegisterNodeResponse], error) {
	if guard.IsFromNetwork(ctx) && !guard.IsNetwork(r.Msg.Address) {
		return nil, turnstone.Errorf("node.register", turnstone.KindInvalid,
			"the address of node "+r.Msg.Node.GetName(), "is not HOST:PORT, and the node is on "+
				"another machine").WithHint("set peers.address of the node to HOST:PORT")
	}
	if err := c.register(ctx, r.Msg.Node, r.Msg.Address); err != nil {
		return nil, err
	}
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	return connect.NewResponse(&v1.RegisterNodeResponse{
		Pools: c.nodes.fleet.Shares(r.Msg.Node.Name)}), nil
}

// LocateChannel implements turnstonev1connect.ControllerServiceHandler.
func (c peerService) LocateChannel(ctx context.Context,
	r *connect.Request[v1.LocateChannelRequest]) (*connect.Response[v1.LocateChannelResponse],
	error) {
	p := message.OfPrincipal(r.Msg.Principal)
	answer, err := c.locate(ctx, p, r.Msg)
	c.o.Audit.Opened(guard.WithAddress(ctx, r.Header()), p,
		cmp.Or(r.Msg.GetSandboxId(), r.Msg.GetNode()), err)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

func (c *Controller) locate(ctx context.Context, p auth.Principal, m *v1.LocateChannelRequest) (
	*v1.LocateChannelResponse, error) {
	const op = "channel.open"
	name := m.GetNode()
	if id := m.GetSandboxId(); id != "" {
		x, err := c.sandbox(ctx, op, p, auth.SandboxesConnect, id)
		if err == nil {
			err = alive(op, x.Object)
		}
		if err != nil {
			return nil, err
		}
		name = x.Node
	} else if err := allowNode(p); err != nil {
		return nil, err
	}
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	n := c.nodes.all[name]
	if n == nil || !c.nodes.answers(n) {
		return nil, lost(name)
	}
	return &v1.LocateChannelResponse{Node: name, Address: n.address}, nil
}

// allowNode reports why a principal may not open a channel to a node: it needs one of the scopes of
// the methods that answer an attestation for it. What it may do there is decided by its key.
func allowNode(p auth.Principal) error {
	var err error
	for _, s := range []auth.Scope{auth.SessionsRead, auth.TurnsRun, auth.TemplatesWrite} {
		if err = p.Allow(auth.Request{Scope: s}); err == nil {
			return nil
		}
	}
	return err
}

// WatchAuthority implements turnstonev1connect.ControllerServiceHandler.
func (c peerService) WatchAuthority(ctx context.Context, _ *connect.Request[v1.WatchAuthorityRequest],
	stream *connect.ServerStream[v1.WatchAuthorityResponse]) error {
	return guard.WatchAuthority(ctx, c.ctx.Done(), c.o.Publisher, stream.Send)
}
