package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
)

// A fakeNode is a node with machines in memory: its IDs, states and reports are those of a real
// one. It counts what it made, so that a test sees what ran twice.
type fakeNode struct {
	t    testing.TB
	name string

	mu        sync.Mutex
	capacity  *v1.Machine
	sandboxes map[string]*v1.OwnedSandbox
	turns     map[string]*v1.OwnedTurn
	requests  map[string]turnstone.Digest // of tickets
	sessions  map[string]*v1.OwnedSession
	snapshots map[string]*v1.OwnedSnapshot
	templates map[string]*v1.Template
	made      map[string]int // objects made, by ID
	calls     map[string]int // by method
	watchers  map[chan *v1.WatchNodeResponse]bool
	// before and after run around each call, without mu. Their error is the call's.
	before, after func(ctx context.Context, method, id string) error
	listed        func() // runs after a list was made, before it is sent

	server *httptest.Server
}

func newFakeNode(t testing.TB, name string) *fakeNode {
	n := &fakeNode{t: t, name: name, capacity: &v1.Machine{Cpus: 64, Memory: 64 << 30, Disk: 1 << 40},
		sandboxes: map[string]*v1.OwnedSandbox{}, turns: map[string]*v1.OwnedTurn{},
		requests: map[string]turnstone.Digest{},
		sessions: map[string]*v1.OwnedSession{}, snapshots: map[string]*v1.OwnedSnapshot{},
		templates: map[string]*v1.Template{"base": {Name: "base", Digest: "d",
			State: v1.TemplateState_TEMPLATE_STATE_BUILT, Built: timestamppb.Now(),
			Machine: &v1.Machine{Cpus: 2, Memory: 1 << 30}}},
		made: map[string]int{}, calls: map[string]int{},
		watchers: map[chan *v1.WatchNodeResponse]bool{}}
	n.start()
	t.Cleanup(n.stop)
	return n
}

// start listens; stop ends all connections. What the node has stays.
func (n *fakeNode) start() {
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewNodeServiceHandler(n, serve.HandlerOptions(nil)...))
	n.server = httptest.NewUnstartedServer(mux)
	n.server.EnableHTTP2 = false
	n.server.Start()
}

func (n *fakeNode) stop() {
	n.server.CloseClientConnections()
	n.mu.Lock()
	for w := range n.watchers {
		close(w)
		delete(n.watchers, w)
	}
	n.mu.Unlock()
	n.server.Close()
}

func (n *fakeNode) address() string { return n.server.Listener.Addr().String() }

func (n *fakeNode) node() *v1.Node {
	return &v1.Node{Name: n.name, Capacity: n.capacity, Used: &v1.Machine{},
		Key:        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
		Substrates: []string{"gvisor"}, Version: "test"}
}

// do runs the body of a call.
func do[T any](ctx context.Context, n *fakeNode, method, id string, f func() (*T, error)) (
	*connect.Response[T], error) {
	n.mu.Lock()
	n.calls[method]++
	before, after := n.before, n.after
	n.mu.Unlock()
	if before != nil {
		if err := before(ctx, method, id); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	m, err := f()
	if err == nil {
		m = proto.Clone(any(m).(proto.Message)).(any).(*T)
	}
	n.mu.Unlock()
	if err == nil && after != nil {
		err = after(ctx, method, id)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(m), nil
}

// tell sends an event to the watchers. The caller holds mu.
func (n *fakeNode) tell(e v1.WatchEvent, object any) {
	m := event(e, object)
	for w := range n.watchers {
		select {
		case w <- m:
		default:
			close(w) // it is too slow: it reads the list again
			delete(n.watchers, w)
		}
	}
}

func event(e v1.WatchEvent, object any) *v1.WatchNodeResponse {
	m := &v1.WatchNodeResponse{Event: e}
	switch x := object.(type) {
	case *v1.Node:
		m.Object = &v1.WatchNodeResponse_Node{Node: x}
	case *v1.OwnedSandbox:
		m.Object = &v1.WatchNodeResponse_Sandbox{Sandbox: x}
	case *v1.OwnedTurn:
		m.Object = &v1.WatchNodeResponse_Turn{Turn: x}
	case *v1.OwnedSession:
		m.Object = &v1.WatchNodeResponse_Session{Session: x}
	case *v1.OwnedSnapshot:
		m.Object = &v1.WatchNodeResponse_Snapshot{Snapshot: x}
	case *v1.Template:
		m.Object = &v1.WatchNodeResponse_Template{Template: x}
	}
	return proto.Clone(m).(*v1.WatchNodeResponse)
}

const (
	evListed  = v1.WatchEvent_WATCH_EVENT_LISTED
	evSynced  = v1.WatchEvent_WATCH_EVENT_SYNCED
	evChanged = v1.WatchEvent_WATCH_EVENT_CHANGED
	evDeleted = v1.WatchEvent_WATCH_EVENT_DELETED
)

func (n *fakeNode) GetNode(context.Context, *connect.Request[v1.GetNodeRequest]) (
	*connect.Response[v1.GetNodeResponse], error) {
	return connect.NewResponse(&v1.GetNodeResponse{Node: n.node()}), nil
}

func (n *fakeNode) WatchNode(ctx context.Context, _ *connect.Request[v1.WatchNodeRequest],
	stream *connect.ServerStream[v1.WatchNodeResponse]) error {
	w := make(chan *v1.WatchNodeResponse, 10_000)
	list := []*v1.WatchNodeResponse{event(evListed, n.node())}
	n.mu.Lock()
	n.calls["WatchNode"]++
	n.watchers[w] = true
	for _, x := range n.sandboxes {
		list = append(list, event(evListed, x))
	}
	for _, x := range n.turns {
		list = append(list, event(evListed, x))
	}
	for _, x := range n.sessions {
		list = append(list, event(evListed, x))
	}
	for _, x := range n.snapshots {
		list = append(list, event(evListed, x))
	}
	for _, x := range n.templates {
		list = append(list, event(evListed, x))
	}
	listed := n.listed
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.watchers, w)
		n.mu.Unlock()
	}()
	if listed != nil {
		listed()
	}
	for _, m := range append(list, event(evSynced, nil)) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m, ok := <-w:
			if !ok {
				return connect.NewError(connect.CodeUnavailable, context.Canceled)
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

func none(id string) error {
	return api.ToConnect(turnstone.Errorf("node", turnstone.KindNotFound, id, "does not exist"))
}

func (n *fakeNode) channel(c *v1.ChannelClient, path string) *v1.Channel {
	return &v1.Channel{Attestation: append([]byte("attestation of "+n.name+" "), c.GetNonce()...),
		ServerPublicKey: make([]byte, 32), Path: path,
		Expires: timestamppb.New(time.Now().Add(time.Hour))}
}

// newSandbox makes a sandbox. The caller holds mu.
func (n *fakeNode) newSandbox(tenant, id, parent string,
	m *v1.CreateSandboxRequest) *v1.OwnedSandbox {
	if x := n.sandboxes[id]; x != nil {
		return x
	}
	n.made[id]++
	machine := m.GetMachine()
	if machine == nil { // the template's, as the controller counts it
		machine = n.templates[cmp.Or(m.GetTemplate(), "base")].GetMachine()
	}
	if machine == nil {
		machine = &v1.Machine{Cpus: 1, Memory: 1 << 30}
	}
	s := &v1.Sandbox{SandboxId: id, Name: m.GetName(),
		State: v1.SandboxState_SANDBOX_STATE_READY, ContextId: m.GetContextId(),
		Template: m.GetTemplate() + m.GetImage(), TemplateDigest: "d", Substrate: "gvisor",
		Machine: machine, Metadata: m.GetMetadata(), ManagedBy: m.GetManagedBy(), Created: timestamppb.Now(),
		Changed: timestamppb.Now(), SnapshotId: m.GetSnapshotId(), ParentId: parent}
	if d := m.GetTimeout(); d != nil {
		s.Expires = timestamppb.New(time.Now().Add(d.AsDuration()))
	}
	x := &v1.OwnedSandbox{Tenant: tenant, Sandbox: s}
	n.sandboxes[id] = x
	n.tell(evChanged, x)
	return x
}

func (n *fakeNode) CreateSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceCreateSandboxRequest]) (
	*connect.Response[v1.CreateSandboxResponse], error) {
	return do(ctx, n, "CreateSandbox", r.Msg.SandboxId, func() (*v1.CreateSandboxResponse, error) {
		m := r.Msg.Request
		if m.GetTemplate() == "broken" {
			return nil, api.ToConnect(turnstone.Errorf("template", turnstone.KindNotFound, "broken",
				"is not known"))
		}
		if name := m.GetContextId(); name != "" && r.Msg.SessionId == "" {
			n.newSession(r.Msg.Principal.Tenant, string(turnstone.NewSessionID()), name)
		}
		x := n.newSandbox(r.Msg.Principal.Tenant, r.Msg.SandboxId, "", m)
		return &v1.CreateSandboxResponse{Sandbox: x.Sandbox,
			Phases:  []*v1.Phase{{Name: "create", Took: durationpb.New(time.Second)}},
			Channel: n.channel(m.Client, "/turnstone/v1/sandboxes/"+r.Msg.SandboxId+"/channel")}, nil
	})
}

// owned returns a sandbox of the principal's tenant. The caller holds mu.
func (n *fakeNode) owned(p *v1.Principal, id string) (*v1.OwnedSandbox, error) {
	x := n.sandboxes[id]
	if x == nil || x.Tenant != p.Tenant {
		return nil, none(id)
	}
	return x, nil
}

// set changes a sandbox and reports it. The caller holds mu.
func (n *fakeNode) set(x *v1.OwnedSandbox, f func(*v1.Sandbox)) {
	f(x.Sandbox)
	x.Sandbox.Changed = timestamppb.Now()
	n.tell(evChanged, x)
}

func (n *fakeNode) ConnectSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectSandboxRequest]) (
	*connect.Response[v1.ConnectSandboxResponse], error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "ConnectSandbox", id, func() (*v1.ConnectSandboxResponse, error) {
		if _, err := n.owned(r.Msg.Principal, id); err != nil {
			return nil, err
		}
		return &v1.ConnectSandboxResponse{Channel: n.channel(r.Msg.Request.Client,
			"/turnstone/v1/sandboxes/"+id+"/channel")}, nil
	})
}

func (n *fakeNode) DeleteSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteSandboxRequest]) (
	*connect.Response[v1.DeleteSandboxResponse], error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "DeleteSandbox", id, func() (*v1.DeleteSandboxResponse, error) {
		x, err := n.owned(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		x.Sandbox.State = v1.SandboxState_SANDBOX_STATE_STOPPED
		x.Sandbox.Reason = v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED
		delete(n.sandboxes, id)
		n.tell(evDeleted, x)
		return &v1.DeleteSandboxResponse{Sandbox: x.Sandbox}, nil
	})
}

func (n *fakeNode) PauseSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServicePauseSandboxRequest]) (
	*connect.Response[v1.PauseSandboxResponse], error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "PauseSandbox", id, func() (*v1.PauseSandboxResponse, error) {
		x, err := n.owned(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		n.set(x, func(s *v1.Sandbox) { s.Paused = true })
		return &v1.PauseSandboxResponse{Sandbox: x.Sandbox}, nil
	})
}

func (n *fakeNode) ResumeSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceResumeSandboxRequest]) (
	*connect.Response[v1.ResumeSandboxResponse], error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "ResumeSandbox", id, func() (*v1.ResumeSandboxResponse, error) {
		x, err := n.owned(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		n.set(x, func(s *v1.Sandbox) { s.Paused = false })
		return &v1.ResumeSandboxResponse{Sandbox: x.Sandbox}, nil
	})
}

func (n *fakeNode) ForkSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceForkSandboxRequest]) (
	*connect.Response[v1.ForkSandboxResponse], error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "ForkSandbox", id, func() (*v1.ForkSandboxResponse, error) {
		if _, err := n.owned(r.Msg.Principal, id); err != nil {
			return nil, err
		}
		answer := &v1.ForkSandboxResponse{}
		for i, clone := range r.Msg.SandboxIds {
			x := n.newSandbox(r.Msg.Principal.Tenant, clone, id, nil)
			answer.Clones = append(answer.Clones, &v1.CreateSandboxResponse{Sandbox: x.Sandbox,
				Channel: n.channel(r.Msg.Request.Clients[i], "/"+clone)})
		}
		return answer, nil
	})
}

func (n *fakeNode) SnapshotSandbox(ctx context.Context,
	r *connect.Request[v1.NodeServiceSnapshotSandboxRequest]) (
	*connect.Response[v1.SnapshotSandboxResponse], error) {
	return do(ctx, n, "SnapshotSandbox", r.Msg.SnapshotId, func() (*v1.SnapshotSandboxResponse,
		error) {
		x, err := n.owned(r.Msg.Principal, r.Msg.Request.SandboxId)
		if err != nil {
			return nil, err
		}
		s := n.snapshots[r.Msg.SnapshotId]
		if s == nil {
			n.made[r.Msg.SnapshotId]++
			s = &v1.OwnedSnapshot{Tenant: x.Tenant, Snapshot: &v1.Snapshot{
				SnapshotId: r.Msg.SnapshotId, SandboxId: x.Sandbox.SandboxId, Template: "base",
				Substrate: "gvisor", Size: 1000, Created: timestamppb.Now()}}
			n.snapshots[r.Msg.SnapshotId] = s
			n.tell(evChanged, s)
		}
		return &v1.SnapshotSandboxResponse{Snapshot: s.Snapshot}, nil
	})
}

func (n *fakeNode) DeleteSnapshot(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteSnapshotRequest]) (
	*connect.Response[v1.DeleteSnapshotResponse], error) {
	id := r.Msg.Request.SnapshotId
	return do(ctx, n, "DeleteSnapshot", id, func() (*v1.DeleteSnapshotResponse, error) {
		s := n.snapshots[id]
		if s == nil || s.Tenant != r.Msg.Principal.Tenant {
			return nil, none(id)
		}
		delete(n.snapshots, id)
		n.tell(evDeleted, s)
		return &v1.DeleteSnapshotResponse{}, nil
	})
}

func (n *fakeNode) SetSandboxTimeout(ctx context.Context,
	r *connect.Request[v1.NodeServiceSetSandboxTimeoutRequest]) (
	*connect.Response[v1.SetSandboxTimeoutResponse], error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "SetSandboxTimeout", id, func() (*v1.SetSandboxTimeoutResponse, error) {
		x, err := n.owned(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		n.set(x, func(s *v1.Sandbox) {
			s.Expires = timestamppb.New(time.Now().Add(r.Msg.Request.Timeout.AsDuration()))
		})
		return &v1.SetSandboxTimeoutResponse{Sandbox: x.Sandbox}, nil
	})
}

func (n *fakeNode) ExposePort(ctx context.Context,
	r *connect.Request[v1.NodeServiceExposePortRequest]) (*connect.Response[v1.ExposePortResponse],
	error) {
	id := r.Msg.Request.SandboxId
	return do(ctx, n, "ExposePort", id, func() (*v1.ExposePortResponse, error) {
		if _, err := n.owned(r.Msg.Principal, id); err != nil {
			return nil, err
		}
		return &v1.ExposePortResponse{Url: fmt.Sprint("http://node:", r.Msg.Request.Port)}, nil
	})
}

func (n *fakeNode) ReserveTurn(ctx context.Context,
	r *connect.Request[v1.NodeServiceReserveTurnRequest]) (*connect.Response[v1.StartTurnResponse],
	error) {
	id := r.Msg.TicketId
	return do(ctx, n, "ReserveTurn", id, func() (*v1.StartTurnResponse, error) {
		x := n.turns[id]
		digest := api.RequestDigest(r.Msg.Request)
		if x == nil {
			n.made[id]++
			x = &v1.OwnedTurn{Tenant: r.Msg.Principal.Tenant, Turn: &v1.Turn{TicketId: id,
				SessionId: r.Msg.SessionId, Session: r.Msg.Request.Session,
				State:   v1.TurnState_TURN_STATE_RESERVED,
				Expires: timestamppb.New(time.Now().Add(time.Minute))}}
			n.turns[id], n.requests[id] = x, digest
			n.tell(evChanged, x)
		} else if n.requests[id] != digest {
			return nil, api.ToConnect(turnstone.Errorf("turn", turnstone.KindInvalid, id,
				"is reserved for something else"))
		}
		return &v1.StartTurnResponse{Turn: x.Turn,
			Channel: n.channel(r.Msg.Request.Client, "/turnstone/v1/nodes/"+n.name+"/channel")}, nil
	})
}

func (n *fakeNode) ConnectTurn(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectTurnRequest]) (*connect.Response[v1.ConnectTurnResponse],
	error) {
	id := r.Msg.Request.TicketId
	return do(ctx, n, "ConnectTurn", id, func() (*v1.ConnectTurnResponse, error) {
		x := n.turns[id]
		if x == nil || x.Tenant != r.Msg.Principal.Tenant {
			return nil, none(id)
		}
		return &v1.ConnectTurnResponse{Turn: x.Turn,
			Channel: n.channel(r.Msg.Request.Client, "/turnstone/v1/nodes/"+n.name+"/channel")}, nil
	})
}

func (n *fakeNode) CancelTurn(ctx context.Context,
	r *connect.Request[v1.NodeServiceCancelTurnRequest]) (*connect.Response[v1.CancelTurnResponse],
	error) {
	id := r.Msg.Request.TicketId
	return do(ctx, n, "CancelTurn", id, func() (*v1.CancelTurnResponse, error) {
		x := n.turns[id]
		if x == nil || x.Tenant != r.Msg.Principal.Tenant {
			return nil, none(id)
		}
		switch x.Turn.State {
		case v1.TurnState_TURN_STATE_RESERVED:
			x.Turn.State = v1.TurnState_TURN_STATE_EXPIRED
		case v1.TurnState_TURN_STATE_RUNNING:
			x.Turn.State = v1.TurnState_TURN_STATE_DONE
			x.Turn.Result = v1.TurnResult_TURN_RESULT_ERROR
			x.Turn.Ended = timestamppb.Now()
		}
		n.tell(evChanged, x)
		return &v1.CancelTurnResponse{Turn: x.Turn}, nil
	})
}

// newSession makes a session. The caller holds mu.
func (n *fakeNode) newSession(tenant, id, name string) *v1.OwnedSession {
	for _, s := range n.sessions {
		if name != "" && s.Tenant == tenant && s.Session.Name == name {
			return s
		}
	}
	if s := n.sessions[id]; s != nil {
		return s
	}
	n.made[id]++
	s := &v1.OwnedSession{Tenant: tenant, Session: &v1.Session{SessionId: id, Name: name,
		Created: timestamppb.Now(), Size: 100}}
	n.sessions[id] = s
	n.tell(evChanged, s)
	return s
}

func (n *fakeNode) CreateSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceCreateSessionRequest]) (
	*connect.Response[v1.CreateSessionResponse], error) {
	id := r.Msg.SessionId
	return do(ctx, n, "CreateSession", id, func() (*v1.CreateSessionResponse, error) {
		s := n.newSession(r.Msg.Principal.Tenant, id, r.Msg.Request.Name)
		if s.Session.SessionId != id {
			return nil, api.ToConnect(turnstone.Errorf("session", turnstone.KindInvalid, id,
				"the name is taken"))
		}
		return &v1.CreateSessionResponse{Session: s.Session,
			Channel: n.channel(r.Msg.Request.Client, "/turnstone/v1/nodes/"+n.name+"/channel")}, nil
	})
}

func (n *fakeNode) session(p *v1.Principal, id string) (*v1.OwnedSession, error) {
	s := n.sessions[id]
	if s == nil || s.Tenant != p.Tenant {
		return nil, none(id)
	}
	return s, nil
}

func (n *fakeNode) ConnectSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectSessionRequest]) (
	*connect.Response[v1.ConnectSessionResponse], error) {
	id := cmp.Or(r.Msg.SessionId, r.Msg.Request.Session)
	return do(ctx, n, "ConnectSession", id, func() (*v1.ConnectSessionResponse, error) {
		s, err := n.session(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		return &v1.ConnectSessionResponse{Session: s.Session, Channel: n.channel(
			r.Msg.Request.Client, "/turnstone/v1/nodes/"+n.name+"/channel")}, nil
	})
}

func (n *fakeNode) ConnectNode(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectNodeRequest]) (*connect.Response[v1.ConnectNodeResponse],
	error) {
	return do(ctx, n, "ConnectNode", n.name, func() (*v1.ConnectNodeResponse, error) {
		return &v1.ConnectNodeResponse{Node: n.name, Channel: n.channel(r.Msg.Request.Client,
			"/turnstone/v1/nodes/"+n.name+"/channel")}, nil
	})
}

func (n *fakeNode) RenameSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceRenameSessionRequest]) (
	*connect.Response[v1.RenameSessionResponse], error) {
	id := cmp.Or(r.Msg.SessionId, r.Msg.Request.Session)
	return do(ctx, n, "RenameSession", id, func() (*v1.RenameSessionResponse, error) {
		s, err := n.session(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		s.Session.Name = r.Msg.Request.NewName
		n.tell(evChanged, s)
		return &v1.RenameSessionResponse{Session: s.Session}, nil
	})
}

func (n *fakeNode) DeleteSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteSessionRequest]) (
	*connect.Response[v1.DeleteSessionResponse], error) {
	id := cmp.Or(r.Msg.SessionId, r.Msg.Request.Session)
	return do(ctx, n, "DeleteSession", id, func() (*v1.DeleteSessionResponse, error) {
		s, err := n.session(r.Msg.Principal, id)
		if err != nil {
			return nil, err
		}
		delete(n.sessions, id)
		n.tell(evDeleted, s)
		return &v1.DeleteSessionResponse{Session: s.Session}, nil
	})
}

func (n *fakeNode) BuildTemplate(ctx context.Context,
	r *connect.Request[v1.NodeServiceBuildTemplateRequest]) (
	*connect.Response[v1.BuildTemplateResponse], error) {
	name := r.Msg.Request.Template
	return do(ctx, n, "BuildTemplate", name, func() (*v1.BuildTemplateResponse, error) {
		t := n.templates[name]
		if t == nil {
			n.made[name]++
			t = &v1.Template{Name: name, State: v1.TemplateState_TEMPLATE_STATE_BUILDING}
			n.templates[name] = t
			n.tell(evChanged, t)
		}
		return &v1.BuildTemplateResponse{Template: t}, nil
	})
}

func (n *fakeNode) DeleteTemplate(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteTemplateRequest]) (
	*connect.Response[v1.DeleteTemplateResponse], error) {
	name := r.Msg.Request.Template
	return do(ctx, n, "DeleteTemplate", name, func() (*v1.DeleteTemplateResponse, error) {
		t := n.templates[name]
		if t == nil {
			return nil, none(name)
		}
		delete(n.templates, name)
		n.tell(evDeleted, t)
		return &v1.DeleteTemplateResponse{Template: t}, nil
	})
}

func (n *fakeNode) ConnectTemplates(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectTemplatesRequest]) (
	*connect.Response[v1.ConnectTemplatesResponse], error) {
	return do(ctx, n, "ConnectTemplates", "", func() (*v1.ConnectTemplatesResponse, error) {
		return &v1.ConnectTemplatesResponse{Channel: n.channel(r.Msg.Request.Client, "/")}, nil
	})
}

// finish ends a reserved turn as a node does when its document has run: its session is there, and
// both are reported.
func (n *fakeNode) finish(ticket string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.turns[ticket]
	s := n.newSession(x.Tenant, string(turnstone.NewSessionID()), x.Turn.Session)
	x.Turn.SessionId, x.Turn.State = s.Session.SessionId, v1.TurnState_TURN_STATE_RUNNING
	x.Turn.Number, x.Turn.Started = s.Session.Turns+1, timestamppb.Now()
	n.tell(evChanged, x)
	s.Session.Turns++
	n.tell(evChanged, s)
	x.Turn.State, x.Turn.Result = v1.TurnState_TURN_STATE_DONE, v1.TurnResult_TURN_RESULT_PASSED
	x.Turn.Ended = timestamppb.Now()
	n.tell(evChanged, x)
}

// count returns how often the object was made, and all that were made more than once.
func (n *fakeNode) count(id string) (int, []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var twice []string
	for id, k := range n.made {
		if k > 1 {
			twice = append(twice, id)
		}
	}
	return n.made[id], twice
}

func (n *fakeNode) has() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.sandboxes))
}
