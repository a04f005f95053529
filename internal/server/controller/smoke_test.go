package controller

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// TestSandboxLife follows a sandbox from its creation to its end.
func TestSandboxLife(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	made := w.create(c, &v1.CreateSandboxRequest{Name: "box", Metadata: map[string]string{"k": "v"}})
	id := made.Sandbox.SandboxId
	if made.Sandbox.State != v1.SandboxState_SANDBOX_STATE_READY || made.Channel == nil ||
		made.AuthToken == "" || made.Sandbox.Node != "a" || made.Sandbox.Template != "base" {
		t.Fatalf("%v", made.Sandbox)
	}
	if len(made.Phases) != 1 || made.Phases[0].Took.AsDuration() != time.Second {
		t.Errorf("the phases of the node are %v", made.Phases)
	}
	got, err := c.sandboxes.PauseSandbox(t.Context(), ask(&v1.PauseSandboxRequest{SandboxId: id}))
	must(t, err)
	if !got.Msg.Sandbox.Paused || got.Msg.Sandbox.Metadata["k"] != "v" {
		t.Fatalf("%v", got.Msg.Sandbox)
	}
	resumed, err := c.sandboxes.ResumeSandbox(t.Context(),
		ask(&v1.ResumeSandboxRequest{SandboxId: id}))
	must(t, err)
	if resumed.Msg.Sandbox.Paused {
		t.Fatal("it is paused still")
	}
	list, err := c.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{
		Filter: &v1.SandboxFilter{Metadata: map[string]string{"k": "v"}}}))
	must(t, err)
	if len(list.Msg.Sandboxes) != 1 {
		t.Fatalf("%v", list.Msg)
	}
	forked, err := c.sandboxes.ForkSandbox(t.Context(), ask(&v1.ForkSandboxRequest{SandboxId: id,
		Clients: []*v1.ChannelClient{newClient(), newClient()}}))
	must(t, err)
	if len(forked.Msg.Clones) != 2 || forked.Msg.Clones[1].Sandbox.ParentId != id {
		t.Fatalf("%v", forked.Msg)
	}
	kept, err := c.sandboxes.SnapshotSandbox(t.Context(), ask(&v1.SnapshotSandboxRequest{
		SandboxId: id}))
	must(t, err)
	from := w.create(c, &v1.CreateSandboxRequest{Source: &v1.CreateSandboxRequest_SnapshotId{
		SnapshotId: kept.Msg.Snapshot.SnapshotId}})
	if from.Sandbox.SnapshotId != kept.Msg.Snapshot.SnapshotId || from.Sandbox.Template != "base" {
		t.Fatalf("%v", from.Sandbox)
	}
	deleted, err := c.sandboxes.DeleteSandbox(t.Context(),
		ask(&v1.DeleteSandboxRequest{SandboxId: id}))
	must(t, err)
	if deleted.Msg.Sandbox.State != v1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Fatalf("%v", deleted.Msg.Sandbox)
	}
	_, err = c.sandboxes.PauseSandbox(t.Context(), ask(&v1.PauseSandboxRequest{SandboxId: id}))
	w.fails(err, connect.CodeFailedPrecondition)
}

// TestTurnLife follows a turn that makes its session.
func TestTurnLife(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	made := w.startTurn(c, "k1", "research")
	if made.Turn.State != v1.TurnState_TURN_STATE_RESERVED || made.Channel == nil {
		t.Fatalf("%v", made)
	}
	other := w.startTurn(c, "k2", "research")
	if other.Turn.Node != made.Turn.Node || other.Turn.TicketId == made.Turn.TicketId {
		t.Fatalf("one new session is on two nodes: %v, %v", made.Turn, other.Turn)
	}
	for _, n := range w.nodes {
		if n.name == made.Turn.Node {
			n.finish(made.Turn.TicketId)
		}
	}
	w.eventually("the turn is done", func() bool {
		got, err := c.turns.GetTurn(t.Context(), ask(&v1.GetTurnRequest{
			TicketId: made.Turn.TicketId}))
		must(t, err)
		x := got.Msg.Turn
		return x.State == v1.TurnState_TURN_STATE_DONE && x.SessionId != "" &&
			x.Session == "research" && x.Result == v1.TurnResult_TURN_RESULT_PASSED
	})
	s, err := c.sessions.GetSession(t.Context(), ask(&v1.GetSessionRequest{Session: "research"}))
	must(t, err)
	if s.Msg.Session.Turns != 1 || s.Msg.Session.Node != made.Turn.Node {
		t.Fatalf("%v", s.Msg)
	}
	list, err := c.turns.ListTurns(t.Context(), ask(&v1.ListTurnsRequest{
		Filter: &v1.TurnFilter{Session: "research"}}))
	must(t, err)
	if len(list.Msg.Turns) != 2 {
		t.Fatalf("%v", list.Msg)
	}
}
