package controller

import (
	"context"
	"testing"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/records"
)

// TestNewSessionOfSandbox: a sandbox and a turn that were begun under the name of a new session
// follow the session when its name changes.
func TestNewSessionOfSandbox(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	ctx := t.Context()
	ticket := w.startTurn(c, "k", "research").Turn
	box := w.create(c, &v1.CreateSandboxRequest{ContextId: "research"}).Sandbox
	if box.ContextId != "research" || box.Node != ticket.Node {
		t.Fatalf("%v, %v", box, ticket)
	}
	w.eventually("the session is known", func() bool {
		_, err := c.sessions.RenameSession(ctx, ask(&v1.RenameSessionRequest{Session: "research",
			NewName: "report"}))
		return err == nil
	})
	if s := w.state(c, box.SandboxId); s.ContextId != "report" {
		t.Errorf("%v", s)
	}
	got, err := c.turns.GetTurn(ctx, ask(&v1.GetTurnRequest{TicketId: ticket.TicketId}))
	must(t, err)
	if got.Msg.Turn.Session != "report" || got.Msg.Turn.SessionId == "" {
		t.Errorf("%v", got.Msg)
	}
	// Another tenant's session of the same name is another one.
	other := w.as(with("other"))
	if s := w.create(other, &v1.CreateSandboxRequest{ContextId: "report"}).Sandbox; s.ContextId !=
		"report" {
		t.Errorf("%v", s)
	}
	list, err := c.sandboxes.ListSandboxes(ctx, ask(&v1.ListSandboxesRequest{
		Filter: &v1.SandboxFilter{ContextId: "report"}}))
	must(t, err)
	if len(list.Msg.Sandboxes) != 1 {
		t.Errorf("%v", list.Msg)
	}
}

// TestOldNameOfSession: a report under a name that the session had, and another one has now, leaves a
// sandbox where it is.
func TestOldNameOfSession(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	ctx := t.Context()
	for _, name := range []string{"one", "two"} {
		_, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{Name: name, Client: newClient()}))
		must(t, err)
	}
	id := w.create(c, &v1.CreateSandboxRequest{ContextId: "one"}).Sandbox.SandboxId
	for _, names := range [][2]string{{"one", "three"}, {"two", "one"}} {
		_, err := c.sessions.RenameSession(ctx, ask(&v1.RenameSessionRequest{Session: names[0], NewName: names[1]}))
		must(t, err)
	}
	w.set(id, func(s *v1.Sandbox) { s.ContextId, s.State = "one", v1.SandboxState_SANDBOX_STATE_STOPPED })
	w.eventually("the report has arrived", func() bool {
		return w.state(c, id).State == v1.SandboxState_SANDBOX_STATE_STOPPED
	})
	if s := w.state(c, id); s.ContextId != "three" {
		t.Errorf("%v", s)
	}
}

// TestSessionWhilePlanned: a sandbox that was planned under the name of a session, whose record was
// made before the sandbox's, has the session's ID.
func TestSessionWhilePlanned(t *testing.T) {
	w := newWorld(t, "a")
	ctx := t.Context()
	n := creation{plan: func(context.Context) ([]records.Object, error) {
		return []records.Object{{Kind: records.Sandbox, ID: string(turnstone.NewSandboxID()), Tenant: "acme",
			Owner: "me", Node: "a", Session: "research", State: records.Creating}}, nil
	}}
	x, err := w.choose(ctx, "acme", n)
	must(t, err)
	id := string(turnstone.NewSessionID())
	w.nodes[0].mu.Lock()
	w.nodes[0].newSession("acme", id, "research")
	w.nodes[0].mu.Unlock()
	w.eventually("the session is known", func() bool {
		_, err := w.store.Named(ctx, "acme", records.Session, "research")
		return err == nil
	})
	made, _, done, err := w.record(ctx, "acme", n, x)
	must(t, err)
	done()
	if o, err := w.store.Object(ctx, "acme", records.Sandbox, made[0].ID); err != nil || o.Session != id {
		t.Errorf("%v %v", o, err)
	}
}
