package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// A node is simulated: it answers, lists and reports as a real one does, and has no machines.
type node struct {
	connectv1.UnimplementedNodeServiceHandler
	name, address string

	mu       sync.Mutex
	boxes    map[string]*v1.OwnedSandbox
	watchers map[chan *v1.WatchNodeResponse]bool
}

// startNodes serves nodes at sockets in a folder until ctx ends, and registers them again and again, as
// nodes do.
func startNodes(ctx context.Context, dir string, count int, to connectv1.ControllerServiceClient) error {
	for i := range count {
		n := &node{name: fmt.Sprintf("n%03d", i), boxes: map[string]*v1.OwnedSandbox{},
			watchers: map[chan *v1.WatchNodeResponse]bool{}}
		path := filepath.Join(dir, n.name)
		n.address = "unix:" + path
		l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle(connectv1.NewNodeServiceHandler(n, serve.HandlerOptions(nil)...))
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, Protocols: &protocols}
		go func() { _ = s.Serve(l) }()
		context.AfterFunc(ctx, func() { _ = s.Close() })
		if err := n.register(ctx, to); err != nil {
			return err
		}
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(5 * time.Second):
					_ = n.register(ctx, to)
				}
			}
		}()
	}
	return nil
}

func (n *node) register(ctx context.Context, to connectv1.ControllerServiceClient) error {
	_, err := to.RegisterNode(ctx, connect.NewRequest(&v1.RegisterNodeRequest{Node: n.describe(), Address: n.address}))
	return err
}

// describe says what the node is: without a bound, because its sandboxes have no machines.
func (n *node) describe() *v1.Node {
	return &v1.Node{Name: n.name, Capacity: &v1.Machine{}, Used: &v1.Machine{}, Substrates: []string{"gvisor"},
		Key:     "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
		Version: "bench"}
}

// WatchNode implements turnstonev1connect.NodeServiceHandler.
func (n *node) WatchNode(ctx context.Context, _ *connect.Request[v1.WatchNodeRequest],
	stream *connect.ServerStream[v1.WatchNodeResponse]) error {
	w := make(chan *v1.WatchNodeResponse, 100_000)
	list := []*v1.WatchNodeResponse{{Event: v1.WatchEvent_WATCH_EVENT_LISTED,
		Object: &v1.WatchNodeResponse_Node{Node: n.describe()}},
		{Event: v1.WatchEvent_WATCH_EVENT_LISTED, Object: &v1.WatchNodeResponse_Template{Template: &v1.Template{
			Name: "base", Digest: "d", State: v1.TemplateState_TEMPLATE_STATE_BUILT, Built: timestamppb.Now(),
			Machine: &v1.Machine{Cpus: 1, Memory: 256 << 20, Disk: 1 << 30}}}}}
	n.mu.Lock()
	n.watchers[w] = true
	for _, x := range n.boxes {
		list = append(list, &v1.WatchNodeResponse{Event: v1.WatchEvent_WATCH_EVENT_LISTED,
			Object: &v1.WatchNodeResponse_Sandbox{Sandbox: proto.Clone(x).(*v1.OwnedSandbox)}})
	}
	n.mu.Unlock()
	defer func() { n.mu.Lock(); delete(n.watchers, w); n.mu.Unlock() }()
	for _, m := range append(list, &v1.WatchNodeResponse{Event: v1.WatchEvent_WATCH_EVENT_SYNCED}) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	alive := time.NewTicker(10 * time.Second)
	defer alive.Stop()
	for {
		m := &v1.WatchNodeResponse{Event: v1.WatchEvent_WATCH_EVENT_ALIVE}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
		case m = <-w:
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

// CreateSandbox implements turnstonev1connect.NodeServiceHandler.
func (n *node) CreateSandbox(_ context.Context, r *connect.Request[v1.NodeServiceCreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	m, id := r.Msg.Request, r.Msg.SandboxId
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.boxes[id]
	if x == nil {
		now := timestamppb.Now()
		x = &v1.OwnedSandbox{Tenant: r.Msg.Principal.GetTenant(), Sandbox: &v1.Sandbox{SandboxId: id, Name: m.GetName(),
			State: v1.SandboxState_SANDBOX_STATE_READY, Template: m.GetTemplate(), TemplateDigest: "d",
			Substrate: "gvisor", Machine: &v1.Machine{Cpus: 1, Memory: 256 << 20, Disk: 1 << 30},
			Metadata: m.GetMetadata(), Created: now, Changed: now}}
		if d := m.GetTimeout(); d != nil {
			x.Sandbox.Expires = timestamppb.New(time.Now().Add(d.AsDuration()))
		}
		n.boxes[id] = x
		n.tell(v1.WatchEvent_WATCH_EVENT_CHANGED, x)
	}
	return connect.NewResponse(&v1.CreateSandboxResponse{Sandbox: proto.Clone(x.Sandbox).(*v1.Sandbox),
		Channel: &v1.Channel{Attestation: append([]byte("simulated "), m.GetClient().GetNonce()...),
			ServerPublicKey: make([]byte, 32), Path: "/turnstone/v1/sandboxes/" + id + "/channel",
			Expires: timestamppb.New(time.Now().Add(time.Hour))}}), nil
}

// DeleteSandbox implements turnstonev1connect.NodeServiceHandler.
func (n *node) DeleteSandbox(_ context.Context, r *connect.Request[v1.NodeServiceDeleteSandboxRequest]) (
	*connect.Response[v1.DeleteSandboxResponse], error) {
	id := r.Msg.Request.GetSandboxId()
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.boxes[id]
	if x == nil {
		return nil, api.ToConnect(turnstone.Errorf("node", turnstone.KindNotFound, id, "does not exist"))
	}
	delete(n.boxes, id)
	x.Sandbox.State = v1.SandboxState_SANDBOX_STATE_STOPPED
	x.Sandbox.Reason = v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED
	n.tell(v1.WatchEvent_WATCH_EVENT_DELETED, x)
	return connect.NewResponse(&v1.DeleteSandboxResponse{Sandbox: proto.Clone(x.Sandbox).(*v1.Sandbox)}), nil
}

// tell reports a change. The caller holds mu.
func (n *node) tell(e v1.WatchEvent, x *v1.OwnedSandbox) {
	for w := range n.watchers {
		w <- &v1.WatchNodeResponse{Event: e, Object: &v1.WatchNodeResponse_Sandbox{
			Sandbox: proto.Clone(x).(*v1.OwnedSandbox)}}
	}
}
