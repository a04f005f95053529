package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/records"
)

// state returns what a caller sees of a sandbox.
func (w *world) state(c *callerClient, id string) *v1.Sandbox {
	w.Helper()
	m, err := c.sandboxes.GetSandbox(w.Context(), ask(&v1.GetSandboxRequest{SandboxId: id}))
	must(w, err)
	return m.Msg.Sandbox
}

// only returns the one sandbox that a caller has.
func (w *world) only(c *callerClient) *v1.Sandbox {
	w.Helper()
	m, err := c.sandboxes.ListSandboxes(w.Context(), ask(&v1.ListSandboxesRequest{}))
	must(w, err)
	if len(m.Msg.Sandboxes) != 1 {
		w.Fatalf("there are %d sandboxes", len(m.Msg.Sandboxes))
	}
	return m.Msg.Sandboxes[0]
}

// TestCreateFails: a creation that its node refuses, or does not answer, leaves a failed record and
// nothing at the node.
func TestCreateFails(t *testing.T) {
	for name, x := range map[string]struct {
		source string
		hook   func(n *fakeNode, stop context.CancelFunc)
		want   connect.Code
	}{
		"refused": {source: "broken", want: connect.CodeNotFound},
		"busy": {want: connect.CodeUnavailable, hook: func(n *fakeNode, _ context.CancelFunc) {
			n.hook(func(context.Context, string, string) error { return unavailable() }, nil)
		}},
		"made, and the answer is lost": {want: connect.CodeUnavailable,
			hook: func(n *fakeNode, _ context.CancelFunc) {
				n.hook(nil, func(_ context.Context, method, _ string) error {
					if method == "CreateSandbox" {
						return unavailable()
					}
					return nil
				})
			}},
		"made after the caller left": {want: connect.CodeCanceled,
			hook: func(n *fakeNode, stop context.CancelFunc) {
				n.hook(func(ctx context.Context, method, _ string) error {
					if method == "CreateSandbox" {
						stop()
						<-ctx.Done()
					}
					return nil // a node that does not stop
				}, nil)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			c := w.as(with("acme"))
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if x.hook != nil {
				x.hook(w.nodes[0], stop)
			}
			m := &v1.CreateSandboxRequest{Client: newClient(), Name: "box"}
			if x.source != "" {
				m.Source = &v1.CreateSandboxRequest_Template{Template: x.source}
			}
			_, err := c.sandboxes.CreateSandbox(ctx, ask(m))
			w.fails(err, x.want)
			w.eventually("the record failed", func() bool {
				return w.only(c).State == v1.SandboxState_SANDBOX_STATE_FAILED
			})
			if s := w.only(c); s.Reason != v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED {
				t.Errorf("the reason is %v", s.Reason)
			}
			w.nodes[0].hook(nil, nil)
			w.eventually("the node has nothing", func() bool { return len(w.nodes[0].has()) == 0 })
			// The name is free.
			w.create(c, &v1.CreateSandboxRequest{Name: "box"})
		})
	}
}

// TestNodeVanishesInCreate: a node that goes away while it creates. With a key, the repetition gets
// the same sandbox when the node is back.
func TestNodeVanishesInCreate(t *testing.T) {
	for _, made := range []bool{false, true} {
		w := newWorld(t, "a")
		c := w.as(with("acme"))
		n := w.nodes[0]
		gone := make(chan struct{})
		vanish := func(_ context.Context, method, _ string) error {
			if method == "CreateSandbox" {
				n.server.CloseClientConnections()
				<-gone
			}
			return nil
		}
		if made {
			n.hook(nil, vanish)
		} else {
			n.hook(func(ctx context.Context, method, id string) error {
				if err := vanish(ctx, method, id); err != nil || method != "CreateSandbox" {
					return err
				}
				return unavailable()
			}, nil)
		}
		m := &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "box", Client: newClient()}
		_, err := c.sandboxes.CreateSandbox(t.Context(), ask(m))
		if s := w.fails(err, connect.CodeUnavailable); !api.Retryable(s) {
			t.Error("a retry is not said to help")
		}
		n.hook(nil, nil)
		close(gone)
		id := w.only(c).SandboxId
		m.Client = newClient()
		again := w.create(c, m)
		if again.Sandbox.SandboxId != id || again.AuthToken == "" {
			t.Errorf("the repetition answers %v after %s", again.Sandbox, id)
		}
		if k, _ := n.count(id); k != 1 {
			t.Errorf("it was made %d times", k)
		}
	}
}

// TestAbandoned: a creation with a key that is never repeated fails in the end.
func TestAbandoned(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	w.nodes[0].hook(nil, func(_ context.Context, method, _ string) error {
		if method == "CreateSandbox" || method == "ReserveTurn" {
			return unavailable()
		}
		return nil
	})
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{
		IdempotencyKey: "k", Client: newClient()}))
	w.fails(err, connect.CodeUnavailable)
	w.nodes[0].hook(nil, nil)
	// The node's report may have made it ready meanwhile. An object that waits still fails.
	o := records.Object{Kind: records.Sandbox, ID: string(turnstone.NewSandboxID()),
		Tenant: "acme", Node: "a"}
	made, _, err := w.store.Create(t.Context(), nil, o)
	must(t, err)
	w.unmade.Add(made[0], false)
	w.giveUp(t.Context())
	if s := w.state(c, o.ID); s.State != v1.SandboxState_SANDBOX_STATE_CREATING {
		t.Fatalf("it failed too early: %v", s)
	}
	w.o.Times.Abandon = time.Nanosecond
	time.Sleep(time.Millisecond) //wait: longer than Abandon; more is as good
	w.giveUp(t.Context())
	if s := w.state(c, o.ID); s.State != v1.SandboxState_SANDBOX_STATE_FAILED || s.Removed {
		t.Fatalf("it is %v", s)
	}
}

// TestUndecided: what a node reports of a creation that failed for now is no end, also not in a list: the repetition of
// the call makes the sandbox. One that nobody repeats fails.
func TestUndecided(t *testing.T) {
	w := newWorld(t, "a")
	c, n := w.as(with("acme")), w.nodes[0]
	mark := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	n.hook(func(_ context.Context, method, id string) error {
		if method != "CreateSandbox" {
			return nil
		}
		failed := &v1.OwnedSandbox{Tenant: "acme", Sandbox: &v1.Sandbox{SandboxId: id, Changed: timestamppb.Now(),
			State: v1.SandboxState_SANDBOX_STATE_FAILED, Reason: v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED}}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.tell(evChanged, failed)
		n.tell(evDeleted, failed)
		return unavailable()
	}, nil)
	read := func(paused bool) {
		t.Helper()
		n.mu.Lock()
		n.set(n.sandboxes[mark], func(s *v1.Sandbox) { s.Paused = paused })
		n.mu.Unlock()
		w.eventually("the reports were read", func() bool { return w.state(c, mark).Paused == paused })
	}
	request := &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "box", Client: newClient()}
	for i := range 3 {
		_, err := c.sandboxes.CreateSandbox(t.Context(), ask(request))
		w.fails(err, connect.CodeUnavailable)
		read(i%2 == 0)
		lists := n.asked("WatchNode")
		n.server.CloseClientConnections()
		w.eventually("the node has listed again", func() bool { return n.asked("WatchNode") > lists })
		read(i%2 == 1)
	}
	n.hook(nil, nil)
	if s := w.create(c, request).Sandbox; s.State != v1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("the repetition answers %v", s)
	}
}

// TestFailedCreation: a creation whose caller has the error leaves nothing that has to be removed,
// and what is removed stays so.
func TestFailedCreation(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	refuse := turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "template", "does not exist")
	w.nodes[0].hook(nil, func(_ context.Context, method, _ string) error {
		if method == "CreateSandbox" {
			return refuse
		}
		return nil
	})
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{
		Name: "box", IdempotencyKey: "k", Client: newClient()}))
	w.fails(err, connect.CodeInvalidArgument)
	w.nodes[0].hook(nil, nil)
	all, err := c.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{}))
	must(t, err)
	if len(all.Msg.Sandboxes) != 1 || !all.Msg.Sandboxes[0].Removed ||
		all.Msg.Sandboxes[0].State != v1.SandboxState_SANDBOX_STATE_FAILED {
		t.Fatalf("%v", all.Msg.Sandboxes)
	}
	for _, keep := range []bool{true, false} {
		id := w.create(c, &v1.CreateSandboxRequest{Name: "box"}).Sandbox.SandboxId
		_, err = c.sandboxes.DeleteSandbox(t.Context(),
			ask(&v1.DeleteSandboxRequest{SandboxId: id, Keep: keep}))
		must(t, err)
		if s := w.state(c, id); s.Removed == keep {
			t.Errorf("keep %t: %v", keep, s)
		}
		_, err = c.sandboxes.DeleteSandbox(t.Context(), ask(&v1.DeleteSandboxRequest{SandboxId: id}))
		must(t, err)
		w.restart()
		c = w.as(with("acme"))
		if s := w.state(c, id); !s.Removed || s.Reason !=
			v1.SandboxReason_SANDBOX_REASON_STOP_REQUESTED {
			t.Errorf("removed after keep %t: %v", keep, s)
		}
	}
}

// TestControllerCrashes: a controller that ends between the record and the node's answer.
func TestControllerCrashes(t *testing.T) {
	for _, made := range []bool{false, true} {
		w := newWorld(t, "a")
		c := w.as(with("acme"))
		// The record of a creation that another controller began.
		id := string(turnstone.NewSandboxID())
		m := &v1.CreateSandboxRequest{IdempotencyKey: "k", Client: newClient()}
		_, _, err := w.store.Create(t.Context(), &records.Key{Tenant: "acme",
			Method: "CreateSandbox", Key: "k", Request: api.RequestDigest(m)},
			records.Object{Kind: records.Sandbox, ID: id, Tenant: "acme", Node: "a",
				Template: "base"})
		must(t, err)
		if made {
			n := w.nodes[0]
			n.mu.Lock()
			n.newSandbox("acme", id, "", m)
			n.mu.Unlock()
		}
		w.restart()
		c = w.as(with("acme"))
		want := v1.SandboxState_SANDBOX_STATE_FAILED
		if made {
			want = v1.SandboxState_SANDBOX_STATE_READY
		}
		w.eventually("the list of the node corrects the record", func() bool {
			return w.state(c, id).State == want
		})
		m.Client = newClient()
		again, err := c.sandboxes.CreateSandbox(t.Context(), ask(m))
		if made {
			must(t, err)
			if again.Msg.Sandbox.SandboxId != id {
				t.Errorf("the repetition answers %s", again.Msg.Sandbox.SandboxId)
			}
		} else if s := w.fails(err, connect.CodeFailedPrecondition); api.Retryable(s) {
			t.Error("a retry is said to help")
		}
	}
}

// TestRepeatedWhileListed: a creation that is repeated while the node makes its list is not taken
// for lost, although its record is older than the list.
func TestRepeatedWhileListed(t *testing.T) {
	w := newWorld(t, "a")
	n := w.nodes[0]
	id := string(turnstone.NewSandboxID())
	m := &v1.CreateSandboxRequest{IdempotencyKey: "k", Client: newClient()}
	_, _, err := w.store.Create(t.Context(), &records.Key{Tenant: "acme",
		Method: "CreateSandbox", Key: "k", Request: api.RequestDigest(m)},
		records.Object{Kind: records.Sandbox, ID: id, Tenant: "acme", Node: "a", Template: "base"})
	must(t, err)
	listed, proceed := make(chan struct{}), make(chan struct{})
	n.mu.Lock()
	n.listed = func() {
		listed <- struct{}{}
		<-proceed
	}
	n.mu.Unlock()
	w.stop()
	w.start()
	w.registerNode(n)
	<-listed
	c := w.as(with("acme"))
	made := w.create(c, m)
	n.mu.Lock()
	n.listed = nil
	n.mu.Unlock()
	close(proceed)
	w.join(n)
	if s := w.state(c, id); made.Sandbox.SandboxId != id ||
		s.State != v1.SandboxState_SANDBOX_STATE_READY {
		t.Fatalf("%v", s)
	}
}

// TestNodeLosesThings: what a node does not have any more is failed, and its surplus is removed.
func TestNodeLosesThings(t *testing.T) {
	w := newWorld(t, "a")
	n := w.nodes[0]
	c := w.as(with("acme"))
	keep := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	lose := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	turn := w.startTurn(c, "k", "").Turn.TicketId
	s, err := c.sessions.CreateSession(t.Context(), ask(&v1.CreateSessionRequest{
		Name: "research", Client: newClient()}))
	must(t, err)
	session := s.Msg.Session.SessionId
	n.mu.Lock()
	n.listed = func() {}
	kept := n.sessions[session]
	delete(n.sandboxes, lose)
	delete(n.turns, turn)
	delete(n.sessions, session)
	// It has one that no record has, of an earlier database, and one that ended by its record.
	n.newSandbox("acme", "sb_0000000000000000aa", "", &v1.CreateSandboxRequest{Name: "old"})
	n.mu.Unlock()
	w.restart()
	c = w.as(with("acme"))
	w.eventually("the lost one failed", func() bool {
		return w.state(c, lose).State == v1.SandboxState_SANDBOX_STATE_FAILED
	})
	if x := w.state(c, lose); x.Reason != v1.SandboxReason_SANDBOX_REASON_NODE_LOST {
		t.Errorf("the reason is %v", x.Reason)
	}
	if x := w.state(c, keep); x.State != v1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("%v", x)
	}
	if x := w.state(c, "sb_0000000000000000aa"); x.Name != "old" {
		t.Errorf("%v", x)
	}
	got, err := c.turns.GetTurn(t.Context(), ask(&v1.GetTurnRequest{TicketId: turn}))
	must(t, err)
	if got.Msg.Turn.State != v1.TurnState_TURN_STATE_EXPIRED {
		t.Errorf("%v", got.Msg)
	}
	_, err = c.sessions.GetSession(t.Context(), ask(&v1.GetSessionRequest{Session: "research"}))
	w.fails(err, connect.CodeNotFound)
	// The node finds its folders again: the session is back, and the sandbox is removed.
	n.mu.Lock()
	n.sessions[session] = kept
	n.newSandbox("acme", lose, "", &v1.CreateSandboxRequest{})
	n.mu.Unlock()
	w.restart()
	c = w.as(with("acme"))
	w.eventually("the sandbox is removed", func() bool { return !slices.Contains(n.has(), lose) })
	back, err := c.sessions.GetSession(t.Context(), ask(&v1.GetSessionRequest{Session: "research"}))
	must(t, err)
	if back.Msg.Session.SessionId != session {
		t.Errorf("%v", back.Msg)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sessions[session] == nil {
		t.Error("a session was removed")
	}
}

// TestLostNode: a node that stays away gets no new work and keeps its objects; when it returns, its
// list corrects their records.
func TestLostNode(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	ctx := t.Context()
	s, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{Name: "research",
		Client: newClient()}))
	must(t, err)
	home := w.nodes[0]
	if s.Msg.Session.Node == "b" {
		home = w.nodes[1]
	}
	box := w.create(c, &v1.CreateSandboxRequest{ContextId: "research"}).Sandbox
	gone := w.create(c, &v1.CreateSandboxRequest{ContextId: "research"}).Sandbox
	if box.Node != home.name || box.ContextId != "research" {
		t.Fatalf("a sandbox of a session is elsewhere: %v", box)
	}
	home.stop()
	// The way to the node fails before the controller knows that it is lost.
	_, err = c.sandboxes.PauseSandbox(ctx, ask(&v1.PauseSandboxRequest{SandboxId: box.SandboxId}))
	if text := fmt.Sprintf("%v %+v", err, w.fails(err, connect.CodeUnavailable)); !strings.Contains(
		text, "node "+home.name+": does not answer") || strings.Contains(text, home.address()) ||
		turnstone.HintOf(api.FromConnect(err)) == "" {
		t.Errorf("%s", text)
	}
	w.Controller.nodes.mu.Lock()
	w.Controller.nodes.fleet.Skip(time.Hour)
	w.Controller.nodes.mu.Unlock()
	must(t, w.loseNodes(ctx))
	for _, n := range w.nodes {
		if n != home {
			w.join(n)
		}
	}
	if x := w.state(c, box.SandboxId); x.State != v1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("%v", x)
	}
	_, err = c.sandboxes.PauseSandbox(ctx, ask(&v1.PauseSandboxRequest{SandboxId: box.SandboxId}))
	if x := w.fails(err, connect.CodeUnavailable); api.RetryAfter(x) == 0 || !api.Retryable(x) {
		t.Errorf("%v", x)
	}
	_, err = c.turns.StartTurn(ctx, ask(&v1.StartTurnRequest{IdempotencyKey: "k",
		Session: "research", Client: newClient()}))
	if x := w.fails(err, connect.CodeUnavailable); api.RetryAfter(x) == 0 {
		t.Errorf("%v", x)
	}
	nodes, err := c.server.ListNodes(ctx, ask(&v1.ListNodesRequest{}))
	must(t, err)
	if len(nodes.Msg.Nodes) != 1 {
		t.Errorf("%v", nodes.Msg)
	}
	if x := w.create(c, &v1.CreateSandboxRequest{}).Sandbox; x.Node == home.name {
		t.Errorf("new work is on a lost node: %v", x)
	}
	home.mu.Lock()
	delete(home.sandboxes, gone.SandboxId)
	home.set(home.sandboxes[box.SandboxId], func(s *v1.Sandbox) {
		s.State = v1.SandboxState_SANDBOX_STATE_RUNNING
	})
	home.mu.Unlock()
	home.start()
	w.join(home)
	if x := w.state(c, box.SandboxId); x.State != v1.SandboxState_SANDBOX_STATE_RUNNING {
		t.Errorf("%v", x)
	}
	if x := w.state(c, gone.SandboxId); x.State != v1.SandboxState_SANDBOX_STATE_FAILED {
		t.Errorf("%v", x)
	}
	w.startTurn(c, "k", "research")
}

// TestNoNode: without a node a creation says when to try again, and leaves no record.
func TestNoNode(t *testing.T) {
	w := newWorld(t)
	c := w.as(with("acme"))
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{
		Client: newClient()}))
	if x := w.fails(err, connect.CodeUnavailable); api.RetryAfter(x) == 0 || !api.Retryable(x) {
		t.Errorf("%v", x)
	}
	var e *connect.Error
	if e, _ = err.(*connect.Error); e.Meta().Get("Retry-After") == "" {
		t.Error("there is no header Retry-After")
	}
	all, err := c.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{}))
	must(t, err)
	if len(all.Msg.Sandboxes) != 0 {
		t.Errorf("%v", all.Msg)
	}
}

// TestDoubt: a sandbox that a node drops from its list and finds again was never gone; one that it
// does not find again has ended.
func TestDoubt(t *testing.T) {
	for _, found := range []bool{true, false} {
		w := newWorld(t)
		if found {
			w.stop()
			w.times.Gone = time.Hour
			w.start()
		}
		n := newFakeNode(t, "a")
		w.join(n)
		c := w.as(with("acme"))
		id := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
		mark := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
		n.mu.Lock()
		n.tell(evDeleted, n.sandboxes[id])
		n.set(n.sandboxes[mark], running)
		n.mu.Unlock()
		w.eventually("the events have arrived", func() bool {
			return w.state(c, mark).State == v1.SandboxState_SANDBOX_STATE_RUNNING
		})
		if !found {
			w.eventually("it has ended", func() bool {
				return w.state(c, id).State == v1.SandboxState_SANDBOX_STATE_STOPPED
			})
			continue
		}
		n.mu.Lock()
		n.set(n.sandboxes[id], running)
		n.mu.Unlock()
		w.eventually("it is there", func() bool {
			return w.state(c, id).State == v1.SandboxState_SANDBOX_STATE_RUNNING
		})
	}
}

// TestLateAnswer: an answer that arrives after a newer report changes nothing.
func TestLateAnswer(t *testing.T) {
	w := newWorld(t, "a")
	n, c := w.nodes[0], w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	n.hook(nil, func(_ context.Context, method, _ string) error {
		if method != "PauseSandbox" {
			return nil
		}
		n.mu.Lock() // another command resumes it before the answer is on its way
		n.set(n.sandboxes[id], func(s *v1.Sandbox) { s.Paused, s.Substrate = false, "resumed" })
		n.mu.Unlock()
		w.eventually("the report", func() bool { return w.state(c, id).Substrate == "resumed" })
		return nil
	})
	_, err := c.sandboxes.PauseSandbox(t.Context(), ask(&v1.PauseSandboxRequest{SandboxId: id}))
	must(t, err)
	if s := w.state(c, id); s.Paused || s.Substrate != "resumed" {
		t.Errorf("an old answer has changed the record: %v", s)
	}
}
