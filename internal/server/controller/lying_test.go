package controller

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// tells reports a copy of a sandbox with changes, as if the node had it.
func (n *fakeNode) tells(x *v1.OwnedSandbox, f func(*v1.Sandbox)) {
	x = proto.CloneOf(x)
	f(x.Sandbox)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell(evChanged, x)
}

// TestLyingNode: what a node says of another node's sandbox changes nothing, nor what is believed of that
// one later. A clock that was far ahead delays no end.
func TestLyingNode(t *testing.T) {
	w := newWorld(t, "a")
	a, b := w.nodes[0], newFakeNode(t, "b")
	c := w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k"}).Sandbox.SandboxId
	mark := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "mark"}).Sandbox.SandboxId
	w.join(b)
	a.mu.Lock()
	of := proto.CloneOf(a.sandboxes[id])
	of2 := proto.CloneOf(a.sandboxes[mark])
	a.mu.Unlock()

	ahead := timestamppb.New(time.Now().AddDate(200, 0, 0))
	b.tells(of, func(s *v1.Sandbox) {
		s.State, s.Paused, s.Changed = v1.SandboxState_SANDBOX_STATE_RUNNING, true, ahead
	})
	// b is asked to remove what it should not have: its report was read.
	w.eventually("the lie was read", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.calls["DeleteSandbox"] > 0
	})
	a.tells(of, func(s *v1.Sandbox) {
		s.State, s.Changed = v1.SandboxState_SANDBOX_STATE_RUNNING, timestamppb.Now()
	})
	w.eventually("the node itself is believed", func() bool {
		s := w.state(c, id)
		return s.State == v1.SandboxState_SANDBOX_STATE_RUNNING && !s.Paused && s.Node == "a"
	})

	a.tells(of2, func(s *v1.Sandbox) { s.Paused, s.Changed = true, ahead })
	w.eventually("the report from ahead is recorded", func() bool { return w.state(c, mark).Paused })
	a.tells(of2, func(s *v1.Sandbox) {
		s.State, s.Reason = v1.SandboxState_SANDBOX_STATE_STOPPED, v1.SandboxReason_SANDBOX_REASON_TIME_UP
		s.Changed = timestamppb.Now()
	})
	w.eventually("it has ended", func() bool {
		return w.state(c, mark).State == v1.SandboxState_SANDBOX_STATE_STOPPED
	})
}

// TestClockOfNode: a node whose clock is decades behind, or ahead, makes no turn longer than it was.
func TestClockOfNode(t *testing.T) {
	w := newWorld(t, "a")
	n, c := w.nodes[0], w.as(with("acme"))
	for key, years := range map[string]int{"behind": -40, "ahead": 40} {
		ticket := w.startTurn(c, key, "").Turn.TicketId
		n.mu.Lock()
		x := n.turns[ticket]
		x.Turn.State, x.Turn.Started = v1.TurnState_TURN_STATE_RUNNING, timestamppb.New(time.Now().AddDate(years, 0, 0))
		n.tell(evChanged, x)
		n.mu.Unlock()
		w.eventually("the turn runs", func() bool {
			a, err := c.turns.GetTurn(t.Context(), ask(&v1.GetTurnRequest{TicketId: ticket}))
			must(t, err)
			return a.Msg.Turn.State == v1.TurnState_TURN_STATE_RUNNING
		})
	}
	since := timestamppb.New(time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC))
	must(t, w.flushUsage(t.Context()))
	a, err := c.turns.GetUsage(t.Context(), ask(&v1.GetUsageRequest{Since: since}))
	must(t, err)
	if u := a.Msg; u.Turns != 2 || u.TurnTime.AsDuration() > 24*time.Hour {
		t.Errorf("%d turns ran for %s", u.Turns, u.TurnTime.AsDuration())
	}
}

// TestSameName: a second node with the name of one that answers does not take its place, so nothing of the
// first one counts as lost. When the first is lost, the second is taken.
func TestSameName(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k"}).Sandbox.SandboxId
	twin := newFakeNode(t, "a")
	info := twin.node()
	info.Key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
	register := func() error {
		_, err := w.peersClient().RegisterNode(t.Context(), connect.NewRequest(
			&v1.RegisterNodeRequest{Node: info, Address: twin.address()}))
		return err
	}
	w.fails(register(), connect.CodeUnavailable)
	w.registerNode(w.nodes[0])
	if s := w.state(c, id); s.State != v1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("it is %v", s)
	}
	w.Controller.nodes.mu.Lock()
	w.Controller.nodes.fleet.Skip(time.Hour)
	w.Controller.nodes.mu.Unlock()
	must(t, w.loseNodes(t.Context()))
	must(t, register())
	w.eventually("the new node's list counts", func() bool {
		return w.state(c, id).State == v1.SandboxState_SANDBOX_STATE_FAILED
	})
}
