package gateway

import (
	"context"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/principal"
	"turnstone.dev/turnstone/internal/server/relay"
	"turnstone.dev/turnstone/internal/server/trail"
)

// headRoom is for the other fields of the request to a node.
const headRoom = 8 << 10

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
	at, err := g.locate(r, where)
	if err != nil {
		g.refuser.refuse(w, r, err)
		return
	}
	p, _ := auth.FromContext(r.Context())
	tell := http.Header{} // the node narrows the channel by it
	if err := principal.Set(tell, p); err != nil {
		g.refuser.refuse(w, r, err)
		return
	}
	trail.Inject(r.Context(), tell)
	l := g.o.Limits
	u := relay.Upgrade{Host: "node", Target: target, Header: tell, Protocols: subprotocols,
		MaxHead: principal.MaxHeader + headRoom, DialTime: l.Handshake, HeadTime: l.Handshake,
		Dial:    func(ctx context.Context) (net.Conn, error) { return g.o.Dial(ctx, at.Address) },
		Refuse:  g.refuseChannel,
		Options: relay.Options{Idle: l.Idle, Write: l.Stall, Total: &g.relayed}}
	began := time.Now()
	pair, err := u.Begin(w, r)
	if err != nil {
		connectionIn(r.Context()).leave()
		g.logChannel(r.Context(), at.Node, relay.Sizes{}, began, err)
		return
	}
	// The handler returns, and with it what net/http keeps for a request: most channels are idle.
	conn := connectionIn(r.Context())
	ctx, done := g.calls.detach(r.Context())
	from := trail.Only(r.Context())
	g.channels.Add(1)
	go func() {
		defer done()
		defer g.channels.Add(-1)
		sizes, err := pair.Copy(ctx)
		conn.leave()
		g.logChannel(from, at.Node, sizes, began, err)
	}()
}

// logChannel logs sizes and times.
func (g *Gateway) logChannel(ctx context.Context, node string, sizes relay.Sizes, began time.Time,
	err error) {
	reason := ""
	if e := relay.EndOf(err); e != nil {
		reason = string(e.Reason)
	} else if err != nil {
		reason = string(turnstone.KindOf(err))
	}
	g.log.InfoContext(ctx, "channel ended", "node", node, "to_node", sizes.ToNode, "to_client", sizes.ToClient,
		"time", time.Since(began).Round(time.Millisecond), "reason", reason)
}

// locate asks the controller for the node of a channel. What it asks is valid: it quotes the path.
func (g *Gateway) locate(r *http.Request, where *v1.LocateChannelRequest) (
	*v1.LocateChannelResponse, error) {
	ctx := r.Context()
	p, _ := auth.FromContext(ctx)
	where.Principal = principal.Message(p)
	if err := serve.Validate("gateway.channel", where); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, locateTime)
	defer cancel()
	ask := connect.NewRequest(where)
	ask.Header().Set(principal.CallerHeader, r.Header.Get(principal.CallerHeader))
	answer, err := g.o.Locator.LocateChannel(ctx, ask)
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
