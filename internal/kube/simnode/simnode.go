// Package simnode has simulated nodes of a server: they answer, list and report as real ones do, and have no
// machines.
package simnode

import (
	"context"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
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

// A Node is simulated. Its methods are safe for concurrent use.
type Node struct {
	connectv1.UnimplementedNodeServiceHandler
	o Options

	mu       sync.Mutex
	kill     context.CancelFunc // nil: it does not run
	drains   bool
	made     int
	boxes    map[string]*v1.OwnedSandbox
	watchers map[chan *v1.WatchNodeResponse]bool
}

// Options are what a node is.
type Options struct {
	Name   string
	Socket string // where it listens
	To     connectv1.ControllerServiceClient
	// Key signs its statements, as "ssh-ed25519 BASE64"; empty: a key that has no use. Certificate is the
	// key's.
	Key         string
	Certificate []byte
}

// every is the time between two registrations.
const every = 5 * time.Second

// New returns a node that does not run.
func New(o Options) *Node {
	if o.Key == "" {
		o.Key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	}
	return &Node{o: o, boxes: map[string]*v1.OwnedSandbox{}, watchers: map[chan *v1.WatchNodeResponse]bool{}}
}

// Start serves at the socket until Kill or the end of ctx, and registers again and again, as nodes do.
func (n *Node) Start(ctx context.Context) error {
	ctx, kill := context.WithCancel(ctx)
	_ = os.Remove(n.o.Socket)
	l, err := new(net.ListenConfig).Listen(ctx, "unix", n.o.Socket)
	if err != nil {
		kill()
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewNodeServiceHandler(n, serve.HandlerOptions(nil)...))
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, Protocols: &protocols,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() { _ = s.Serve(l) }()
	context.AfterFunc(ctx, func() { _ = s.Close() })
	n.mu.Lock()
	n.kill = kill
	n.mu.Unlock()
	if err := n.register(ctx); err != nil {
		kill()
		return err
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
				_ = n.register(ctx)
			}
		}
	}()
	return nil
}

// Kill ends the node as when its computer loses its power. What it has is there when it starts again.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kill != nil {
		n.kill()
	}
}

// Lose ends all sandboxes of a node that does not run, as when its program ends in a pod.
func (n *Node) Lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.boxes)
}

// Drain says from now on that the node ends.
func (n *Node) Drain(ctx context.Context) error {
	n.mu.Lock()
	n.drains = true
	n.mu.Unlock()
	return n.register(ctx)
}

// Has returns the IDs of the sandboxes.
func (n *Node) Has() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.boxes))
}

// Made returns how many sandboxes the node has made.
func (n *Node) Made() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.made
}

func (n *Node) register(ctx context.Context) error {
	_, err := n.o.To.RegisterNode(ctx, connect.NewRequest(&v1.RegisterNodeRequest{Node: n.describe(),
		Address: "unix:" + n.o.Socket}))
	return err
}

// describe says what the node is: without a bound, because its sandboxes have no machines.
func (n *Node) describe() *v1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &v1.Node{Name: n.o.Name, Capacity: &v1.Machine{}, Used: &v1.Machine{}, Substrates: []string{"gvisor"},
		Key: n.o.Key, Certificate: n.o.Certificate, Version: "simulated", Draining: n.drains}
}

// WatchNode implements turnstonev1connect.NodeServiceHandler.
func (n *Node) WatchNode(ctx context.Context, _ *connect.Request[v1.WatchNodeRequest],
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
func (n *Node) CreateSandbox(_ context.Context, r *connect.Request[v1.NodeServiceCreateSandboxRequest]) (
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
			Metadata: m.GetMetadata(), ManagedBy: m.GetManagedBy(), Created: now, Changed: now}}
		if d := m.GetTimeout(); d != nil {
			x.Sandbox.Expires = timestamppb.New(time.Now().Add(d.AsDuration()))
		}
		n.boxes[id] = x
		n.made++
		n.tell(v1.WatchEvent_WATCH_EVENT_CHANGED, x)
	}
	return connect.NewResponse(&v1.CreateSandboxResponse{Sandbox: proto.Clone(x.Sandbox).(*v1.Sandbox),
		Channel: &v1.Channel{Attestation: append([]byte("simulated "), m.GetClient().GetNonce()...),
			ServerPublicKey: make([]byte, 32), Path: "/turnstone/v1/sandboxes/" + id + "/channel",
			Expires: timestamppb.New(time.Now().Add(time.Hour))}}), nil
}

// DeleteSandbox implements turnstonev1connect.NodeServiceHandler.
func (n *Node) DeleteSandbox(_ context.Context, r *connect.Request[v1.NodeServiceDeleteSandboxRequest]) (
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
func (n *Node) tell(e v1.WatchEvent, x *v1.OwnedSandbox) {
	for w := range n.watchers {
		w <- &v1.WatchNodeResponse{Event: e, Object: &v1.WatchNodeResponse_Sandbox{
			Sandbox: proto.Clone(x).(*v1.OwnedSandbox)}}
	}
}
