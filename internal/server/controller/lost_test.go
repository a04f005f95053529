package controller

import (
	"context"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// lose lets a node be lost, and no other one.
func (w *world) lose(n *fakeNode) {
	w.Helper()
	w.skip(w.times.Lost / 2)
	for _, o := range w.nodes {
		if o != n {
			w.join(o)
		}
	}
	w.skip(w.times.Lost/2 + time.Minute)
	must(w, w.loseNodes(w.Context()))
}

func (w *world) skip(d time.Duration) {
	w.Controller.nodes.mu.Lock()
	defer w.Controller.nodes.mu.Unlock()
	w.Controller.nodes.fleet.Skip(d)
}

// lost returns the names of the lost nodes.
func (w *world) lost(c *callerClient) (names []string) {
	w.Helper()
	a, err := c.server.ListNodes(w.Context(), ask(&v1.ListNodesRequest{}))
	must(w, err)
	for _, n := range a.Msg.Lost {
		if !n.Since.IsValid() || time.Since(n.Since.AsTime()) < w.times.Lost {
			w.Errorf("%s is lost since %v", n.Node.Name, n.Since)
		}
		names = append(names, n.Node.Name)
	}
	return names
}

// on creates a sandbox on a node.
func (w *world) on(c *callerClient, n *fakeNode) string {
	w.Helper()
	m := &v1.CreateSandboxRequest{}
	for _, o := range w.nodes {
		if o != n {
			m.AvoidNodes = append(m.AvoidNodes, o.name)
		}
	}
	s := w.create(c, m).Sandbox
	if s.Node != n.name {
		w.Fatalf("the sandbox is on %s, not %s", s.Node, n.name)
	}
	return s.SandboxId
}

// TestLostSandboxes: a sandbox says that its node is lost, also after a restart of the controller. It can be
// deleted, and the node removes it when it is back; the others are there again.
func TestLostSandboxes(t *testing.T) {
	w := newWorld(t, "a", "b")
	c, ctx := w.as(with("acme")), t.Context()
	n := w.nodes[0]
	kept, gone := w.on(c, n), w.on(c, n)
	elsewhere := w.on(c, w.nodes[1])
	n.stop()
	if x := w.state(c, kept); x.NodeLost != nil {
		t.Errorf("a node is lost before its time: %v", x)
	}
	_, err := c.sandboxes.DeleteSandbox(ctx, ask(&v1.DeleteSandboxRequest{SandboxId: gone}))
	w.fails(err, connect.CodeUnavailable) // it may answer at any moment
	w.lose(n)
	since := w.state(c, kept).NodeLost
	if !since.IsValid() || w.state(c, elsewhere).NodeLost != nil || !slices.Equal(w.lost(c), []string{"a"}) {
		t.Errorf("lost since %v; lost are %v", since, w.lost(c))
	}
	w.stop()
	w.start()
	w.join(w.nodes[1])
	c = w.as(with("acme"))
	if again := w.state(c, kept).NodeLost; !again.IsValid() || !slices.Equal(w.lost(c), []string{"a"}) {
		t.Errorf("after a restart, lost since %v; lost are %v", again, w.lost(c))
	}
	a, err := c.sandboxes.DeleteSandbox(ctx, ask(&v1.DeleteSandboxRequest{SandboxId: gone}))
	must(t, err)
	if s := a.Msg.Sandbox; !s.Removed || s.State != v1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Errorf("%v", s)
	}
	// It is removed although the node refuses it first.
	refusals := 2
	n.hook(func(_ context.Context, method, _ string) error {
		if method == "DeleteSandbox" && refusals > 0 {
			refusals--
			return unavailable()
		}
		return nil
	}, nil)
	n.start()
	w.join(n)
	w.eventually("the node has removed it", func() bool { return slices.Equal(n.has(), []string{kept}) })
	if x := w.state(c, kept); x.NodeLost != nil || x.State != v1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("%v", x)
	}
}

// TestRemoveNode: a lost node is removed by a call or after a time. What it had has failed, and no sandbox is
// there when the node comes back, with a record or without; its sessions are.
func TestRemoveNode(t *testing.T) {
	for _, forget := range []bool{false, true} {
		w := newWorld(t, "a", "b")
		w.stop()
		w.times.Forget = 24 * time.Hour
		w.start()
		for _, n := range w.nodes {
			w.join(n)
		}
		c, ctx := w.as(with("acme")), t.Context()
		n := w.nodes[0]
		s, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{Name: "research", Client: newClient()}))
		must(t, err)
		if s.Msg.Session.Node != n.name {
			n = w.nodes[1]
		}
		box := w.on(c, n)
		remove := func() (*v1.RemoveNodeResponse, error) {
			a, err := c.server.RemoveNode(ctx, ask(&v1.RemoveNodeRequest{Name: n.name}))
			if err != nil {
				return nil, err
			}
			return a.Msg, nil
		}
		_, err = remove()
		w.fails(err, connect.CodeFailedPrecondition)
		n.stop()
		w.lose(n)
		if forget {
			w.skip(24 * time.Hour)
			for _, o := range w.nodes {
				if o != n {
					w.registerNode(o)
				}
			}
			must(t, w.loseNodes(ctx))
		} else if m, err := remove(); err != nil || m.Sandboxes != 1 || m.Sessions != 1 || m.Turns != 0 {
			t.Errorf("removed %v: %v", m, err)
		}
		_, err = remove()
		w.fails(err, connect.CodeNotFound)
		if x := w.state(c, box); x.State != v1.SandboxState_SANDBOX_STATE_FAILED ||
			x.Reason != v1.SandboxReason_SANDBOX_REASON_NODE_LOST {
			t.Errorf("%v", x)
		}
		if all := w.lost(c); len(all) != 0 {
			t.Errorf("%v are lost", all)
		}
		w.stop() // the next controller knows it too
		w.start()
		c = w.as(with("acme"))
		n.mu.Lock()
		n.newSandbox("acme", string(turnstone.NewSandboxID()), "", &v1.CreateSandboxRequest{})
		n.mu.Unlock()
		n.start()
		w.join(n)
		w.eventually("the node has no sandbox", func() bool { return len(n.has()) == 0 })
		if x := w.only(c); x.SandboxId != box {
			t.Errorf("another sandbox has a record: %v", x)
		}
		if _, err := c.sessions.GetSession(ctx, ask(&v1.GetSessionRequest{Session: "research"})); err != nil {
			t.Errorf("the session is not there again: %v", err)
		}
		w.on(c, n) // it gets work, and keeps it: the next list is not the first after its loss
		w.restart()
		if all := n.has(); len(all) != 1 {
			t.Errorf("the node has %v", all)
		}
	}
}

// TestLostInCreate: a creation ends when the node is lost that was asked and never answers. Its key makes
// nothing later; the next attempt gets another node, and the first leaves nothing.
func TestLostInCreate(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	n := w.nodes[0]
	asked, power := make(chan struct{}), make(chan struct{})
	n.hook(nil, func(_ context.Context, method, _ string) error {
		if method == "CreateSandbox" {
			close(asked)
			<-power
		}
		return nil
	})
	m := &v1.CreateSandboxRequest{IdempotencyKey: "k", Client: newClient(), AvoidNodes: []string{"b"}}
	ended := make(chan error, 1)
	go func() {
		_, err := c.sandboxes.CreateSandbox(t.Context(), ask(m))
		ended <- err
	}()
	<-asked
	w.lose(n)
	if x := w.fails(<-ended, connect.CodeUnavailable); !api.Retryable(x) {
		t.Errorf("%v", x)
	}
	close(power)
	n.hook(nil, nil)
	m = &v1.CreateSandboxRequest{IdempotencyKey: "k", Client: newClient()}
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(m))
	if !api.IsKeySpent(api.FromConnect(err)) {
		t.Errorf("the key makes a sandbox later: %v", err)
	}
	m.IdempotencyKey = "k.1"
	if s := w.create(c, m).Sandbox; s.Node != "b" {
		t.Errorf("%v", s)
	}
	w.join(n)
	w.eventually("the node has no sandbox", func() bool { return len(n.has()) == 0 })
}

// TestAvoid: sandboxes, pools, sessions and turns avoid nodes, and a repetition of a call may name others.
func TestAvoid(t *testing.T) {
	w := newWorld(t, "a", "b")
	c, ctx := w.as(with("acme")), t.Context()
	for range 5 {
		w.on(c, w.nodes[1])
	}
	m := &v1.CreateSandboxRequest{IdempotencyKey: "k", AvoidNodes: []string{"b"}}
	made := w.create(c, m).Sandbox
	m.AvoidNodes, m.Client = []string{"a"}, newClient()
	if again := w.create(c, m).Sandbox; again.SandboxId != made.SandboxId || again.Node != "a" {
		t.Errorf("%v, and then %v", made, again)
	}
	for range 5 {
		s, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{AvoidNodes: []string{"a"}, Client: newClient()}))
		must(t, err)
		turn, err := c.turns.StartTurn(ctx, ask(&v1.StartTurnRequest{IdempotencyKey: string(turnstone.NewTurnID()),
			AvoidNodes: []string{"b"}, Client: newClient()}))
		must(t, err)
		if s.Msg.Session.Node != "b" || turn.Msg.Turn.Node != "a" {
			t.Errorf("the session is on %s, the turn on %s", s.Msg.Session.Node, turn.Msg.Turn.Node)
		}
	}
	_, err := c.sandboxes.CreateSandbox(ctx, ask(&v1.CreateSandboxRequest{AvoidNodes: []string{"a", "b"},
		Client: newClient()}))
	if x := w.fails(err, connect.CodeUnavailable); turnstone.HintOf(x) == "" {
		t.Errorf("%v", x)
	}
	pool := func(avoid ...string) *v1.SetPoolResponse {
		a, err := c.pools.SetPool(ctx, ask(&v1.SetPoolRequest{Name: "p", Count: 4, Ttl: durationpb.New(time.Minute),
			AvoidNodes: avoid}))
		must(t, err)
		return a.Msg
	}
	share := func(n *fakeNode) (sum uint32) {
		m := n.node()
		w.Controller.nodes.mu.Lock()
		size := w.Controller.nodes.sizedAs(nil, "base")
		w.Controller.nodes.mu.Unlock()
		m.Warm = []*v1.WarmKind{{Tenant: "acme", Template: "base", Ready: 2, Machine: &v1.Machine{
			Cpus: uint32(size.CPUs), Memory: uint64(size.Memory), Disk: uint64(size.Disk)}}}
		a, err := w.peersClient().RegisterNode(ctx, ask(&v1.RegisterNodeRequest{Node: m, Address: n.address()}))
		must(t, err)
		for _, p := range a.Msg.Pools {
			sum += p.Min
		}
		return sum
	}
	pool("a")
	if a, b := share(w.nodes[0]), share(w.nodes[1]); a != 0 || b != 4 {
		t.Errorf("the nodes have %d and %d of 4", a, b)
	}
	if m := pool("a"); m.Ready != 2 {
		t.Errorf("what waits on a node that is avoided counts: %v", m)
	}
	pool()
	if a, b := share(w.nodes[0]), share(w.nodes[1]); a != 2 || b != 2 {
		t.Errorf("the nodes have %d and %d of 4", a, b)
	}
	if m := pool(); m.Ready != 4 {
		t.Errorf("%v", m)
	}
}
