package gateway

import (
	"context"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/relay"
)

// locateTime bounds the controller's answer about a channel.
const locateTime = 10 * time.Second

func (g *Gateway) nodeChannel(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("node")
	g.channel(w, r, &v1.LocateChannelRequest{
		Target: &v1.LocateChannelRequest_Node{Node: name}},
		"/turnstone/v1/nodes/"+name+"/channel")
}

func (g *Gateway) sandboxChannel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	g.channel(w, r, &v1.LocateChannelRequest{
		Target: &v1.LocateChannelRequest_SandboxId{SandboxId: id}},
		"/turnstone/v1/sandboxes/"+id+"/channel")
}

// channel carries a channel to its node.
func (g *Gateway) channel(w http.ResponseWriter, r *http.Request, where *v1.LocateChannelRequest,
	target string) {
	at, err := g.locate(r.Context(), where)
	if err != nil {
		g.refuser.refuse(w, r, err)
		return
	}
	l := g.o.Limits
	u := relay.Upgrade{Host: "node", Target: target, DialTime: l.Handshake, HeadTime: l.Handshake,
		Dial:    func(ctx context.Context) (net.Conn, error) { return g.o.Dial(ctx, at.Address) },
		Refuse:  g.refuseChannel,
		Options: relay.Options{Idle: l.Idle, Write: l.Stall}}
	began := time.Now()
	pair, err := u.Begin(w, r)
	if err != nil {
		connectionIn(r.Context()).leave()
		g.logChannel(at.Node, relay.Sizes{}, began, err)
		return
	}
	// The handler returns, and with it what net/http keeps for a request: most channels are idle.
	conn := connectionIn(r.Context())
	ctx, done := g.calls.detach(r.Context())
	go func() {
		defer done()
		sizes, err := pair.Copy(ctx)
		conn.leave()
		g.logChannel(at.Node, sizes, began, err)
	}()
}

// logChannel logs sizes and times.
func (g *Gateway) logChannel(node string, sizes relay.Sizes, began time.Time, err error) {
	reason := ""
	if e := relay.EndOf(err); e != nil {
		reason = string(e.Reason)
	} else if err != nil {
		reason = string(turnstone.KindOf(err))
	}
	g.log.Info("channel ended", "node", node, "to_node", sizes.ToNode, "to_client", sizes.ToClient,
		"time", time.Since(began).Round(time.Millisecond), "reason", reason)
}

// locate asks the controller for the node of a channel. What it asks is valid: it quotes the path.
func (g *Gateway) locate(ctx context.Context, where *v1.LocateChannelRequest) (
	*v1.LocateChannelResponse, error) {
	p, _ := auth.FromContext(ctx)
	where.Principal = principalOf(p)
	if err := serve.Validate("gateway.channel", where); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, locateTime)
	defer cancel()
	answer, err := g.o.Locator.LocateChannel(ctx, connect.NewRequest(where))
	if err != nil {
		return nil, api.FromConnect(err)
	}
	return answer.Msg, nil
}

// refuseChannel answers a client whose upgrade failed.
func (g *Gateway) refuseChannel(w http.ResponseWriter, r *http.Request, err error) {
	status := relay.StatusOf(err)
	if status == http.StatusUpgradeRequired {
		w.Header().Set("Connection", "close, Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Version", "13")
	}
	g.refuser.refuse(withStatus{w, status}, r, err)
}

// principalOf returns what a role tells another one about a caller.
func principalOf(p auth.Principal) *v1.Principal {
	out := &v1.Principal{Issuer: p.Issuer, Tenant: p.Tenant, Subject: p.Subject,
		TokenId: p.TokenID, SandboxId: string(p.Sandbox)}
	if !p.Expires.IsZero() {
		out.Expires = timestamppb.New(p.Expires)
	}
	for _, s := range p.Scopes {
		out.Scopes = append(out.Scopes, string(s))
	}
	for _, s := range p.Sessions {
		out.Sessions = append(out.Sessions, string(s))
	}
	for _, s := range p.Templates {
		out.Templates = append(out.Templates, string(s))
	}
	return out
}
