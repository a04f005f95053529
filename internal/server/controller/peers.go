package controller

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"

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
	if ctx.Value(networkKey{}) != nil && !isNetwork(r.Msg.Address) {
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

type networkKey struct{}

// FromNetwork marks the requests of roles that come over TCP. The address of such a node is on the
// network: by another one, its certificate would open sockets of this machine's user, or stand for
// the node of this process.
func FromNetwork(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), networkKey{}, true)))
	})
}

// isNetwork reports whether an address is HOST:PORT.
func isNetwork(address string) bool {
	host, port, err := net.SplitHostPort(address)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && host != "" && host != "unix" && n != 0
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
func (c peerService) WatchAuthority(ctx context.Context,
	_ *connect.Request[v1.WatchAuthorityRequest],
	stream *connect.ServerStream[v1.WatchAuthorityResponse]) error {
	f := &remoteFollower{wake: make(chan struct{}, 1)}
	leave, err := c.o.Publisher.Follow(f)
	if err != nil {
		return err
	}
	defer leave()
	var sent uint64
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return turnstone.Errorf("authority.watch", turnstone.KindUnavailable, "the controller",
				"ends").WithHint("watch again")
		case <-f.wake:
		}
		b := f.newest()
		if b.Number == sent {
			if err := stream.Send(&v1.WatchAuthorityResponse{Number: sent}); err != nil {
				return err
			}
			continue
		}
		if err := sendBulletin(b, stream.Send); err != nil {
			return err
		}
		sent = b.Number
	}
}

// partSize is the size of a part of a bulletin.
const partSize = 1 << 20

func sendBulletin(b auth.Bulletin, send func(*v1.WatchAuthorityResponse) error) error {
	text, err := b.Encode()
	if err != nil {
		return err
	}
	for len(text) > 0 {
		n := min(len(text), partSize)
		err := send(&v1.WatchAuthorityResponse{Number: b.Number, Part: text[:n],
			Last: n == len(text)})
		if err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// A remoteFollower queues the newest bulletin for a gateway.
type remoteFollower struct {
	wake chan struct{} // has one element when there is a bulletin or a confirmation

	mu   sync.Mutex
	last auth.Bulletin
}

// Update implements auth.Follower.
func (f *remoteFollower) Update(b auth.Bulletin) error {
	f.mu.Lock()
	f.last = b
	f.mu.Unlock()
	f.signal()
	return nil
}

// Confirm implements auth.Follower.
func (f *remoteFollower) Confirm(number uint64) error {
	f.mu.Lock()
	have := f.last.Number
	f.mu.Unlock()
	if have != number {
		return turnstone.Errorf("authority.watch", turnstone.KindIntegrity, "bulletin",
			"number %d is confirmed, which did not come", number)
	}
	f.signal()
	return nil
}

func (f *remoteFollower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *remoteFollower) newest() auth.Bulletin {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}
