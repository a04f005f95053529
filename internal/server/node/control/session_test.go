package control_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node/owners"
)

func (s *scene) session(t *testing.T, p person, id, name string) (*v1.CreateSessionResponse, error) {
	t.Helper()
	return call(t, s.CreateSession, &v1.NodeServiceCreateSessionRequest{Principal: p.Principal,
		SessionId: id, Request: &v1.CreateSessionRequest{Name: name, Client: p.client()}})
}

func (s *scene) reserve(t *testing.T, p person, id string, change func(*v1.StartTurnRequest)) (
	*v1.StartTurnResponse, error) {
	t.Helper()
	q := &v1.StartTurnRequest{IdempotencyKey: "k", Client: p.client()}
	r := &v1.NodeServiceReserveTurnRequest{Principal: p.Principal, Request: q, TicketId: id}
	if change != nil {
		change(q)
	}
	if strings.HasPrefix(q.Session, "s_") {
		r.SessionId = q.Session
	}
	return call(t, s.ReserveTurn, r)
}

// TestSession follows a session from its creation to its removal.
func TestSession(t *testing.T) {
	s, ada, eve := newScene(t, nil), of("ada"), of("eve")
	id := sessionID()
	made, err := s.session(t, ada, id, "work")
	if err != nil || made.Session.SessionId != id || made.Session.Name != "work" ||
		made.Session.Node != "n1" || made.Channel == nil {
		t.Fatalf("%v %v", made, err)
	}
	if _, err := s.session(t, ada, id, "work"); err != nil {
		t.Fatal(err)
	}
	_, err = s.session(t, of("ada"), id, "work")
	want(t, "another client", err, turnstone.KindDenied)
	_, err = s.session(t, ada, sessionID(), "work")
	want(t, "a name in use", err, turnstone.KindInvalid)
	if _, err := s.session(t, eve, sessionID(), "work"); err != nil { // a name of another tenant
		t.Fatal(err)
	}
	connect := func(p person, ref string) error {
		_, err := call(t, s.ConnectSession, &v1.NodeServiceConnectSessionRequest{
			Principal: p.Principal, Request: &v1.ConnectSessionRequest{Session: ref,
				Client: p.client()}})
		return err
	}
	want(t, "its own", connect(ada, id), "")
	want(t, "another tenant's", connect(eve, id), turnstone.KindNotFound)
	want(t, "nobody's", connect(of("nobody"), id), turnstone.KindNotFound)
	rename := func(p person, ref string) error {
		_, err := call(t, s.RenameSession, &v1.NodeServiceRenameSessionRequest{
			Principal: p.Principal, Request: &v1.RenameSessionRequest{Session: ref, NewName: "play"}})
		return err
	}
	want(t, "another tenant's", rename(eve, id), turnstone.KindNotFound)
	want(t, "rename", rename(ada, "work"), "")
	s.stop(t)
	s.start(t)
	want(t, "after a restart", connect(ada, "play"), "")
	remove := func(p person, ref string) error {
		_, err := call(t, s.DeleteSession, &v1.NodeServiceDeleteSessionRequest{
			Principal: p.Principal, Request: &v1.DeleteSessionRequest{Session: ref}})
		return err
	}
	want(t, "another tenant's", remove(eve, id), turnstone.KindNotFound)
	want(t, "remove", remove(ada, id), "")
	want(t, "removed", remove(ada, id), turnstone.KindNotFound)
}

// TestRemovedSession: the name of a session that was removed is that of a new one, also before the
// controller has learned of the removal. Its ID is none.
func TestRemovedSession(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	id := sessionID()
	if _, err := s.session(t, ada, id, "work"); err != nil {
		t.Fatal(err)
	}
	st, err := s.set.Of(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Executor.RemoveSession(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for session, kind := range map[string]turnstone.Kind{"work": "", id: turnstone.KindNotFound} {
		ticket := ticketID()
		r := &v1.NodeServiceReserveTurnRequest{Principal: ada.Principal,
			TicketId: ticket, SessionId: id, Request: &v1.StartTurnRequest{IdempotencyKey: "k",
				Session: session, Client: ada.client()}}
		for range 2 { // repeated, it answers the same ticket
			_, err := call(t, s.ReserveTurn, r)
			want(t, session, err, kind)
		}
		if i, err := st.Turns.Get(ticket); kind == "" && (err != nil || i.SessionID != "") {
			t.Error("the ticket is for the removed session:", err, i.SessionID)
		}
	}
}

// TestOperatorsSession: whoever calls with the ID of a session that a local command has made does
// not get it.
func TestOperatorsSession(t *testing.T) {
	s := newScene(t, nil)
	st, err := s.set.Of(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	made, err := st.Executor.CreateSession(t.Context(), turnstone.NewSessionID(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	eve := of("local")
	_, err = s.session(t, eve, string(made.ID), "mine")
	want(t, "create", err, turnstone.KindDenied)
	_, err = s.reserve(t, eve, ticketID(), func(q *v1.StartTurnRequest) {
		q.Session = string(made.ID)
	})
	want(t, "a turn", err, turnstone.KindDenied)
	_, err = s.create(t, eve, sandboxID(), func(q *v1.CreateSandboxRequest) { q.ContextId = "mine" })
	want(t, "a sandbox", err, turnstone.KindDenied)
	caller := owners.Caller{Key: eve.pair.Public}
	want(t, "the owner", st.Owners.May(made.ID, caller, owners.Read), turnstone.KindNotFound)
}

// TestContext makes the session of a sandbox, which belongs to the client.
func TestContext(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	sb := s.made(t, ada, func(q *v1.CreateSandboxRequest) { q.ContextId = "work" })
	if sb.ContextId != "work" {
		t.Fatalf("%v", sb)
	}
	st, err := s.set.Of(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	g, err := st.Executor.Session(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "the owner", st.Owners.May(g.Session.ID, owners.Caller{Key: ada.pair.Public},
		owners.Own), "")
	s.made(t, ada, func(q *v1.CreateSandboxRequest) { q.ContextId = "work" })
	_, err = s.create(t, of("ada"), sandboxID(), func(q *v1.CreateSandboxRequest) {
		q.ContextId = "work"
	})
	want(t, "another key", err, turnstone.KindDenied)
}

// TestTicket follows a ticket that no document comes for.
func TestTicket(t *testing.T) {
	s, ada, eve := newScene(t, nil), of("ada"), of("eve")
	id := ticketID()
	ask := func(q *v1.StartTurnRequest) {
		q.Session, q.Timeout = "new", durationpb.New(time.Minute)
	}
	made, err := s.reserve(t, ada, id, ask)
	if err != nil || made.Turn.State != v1.TurnState_TURN_STATE_RESERVED ||
		made.Turn.Session != "new" || made.Turn.Expires == nil ||
		made.Channel.Path != "/turnstone/v1/nodes/n1/channel" {
		t.Fatalf("%v %v", made, err)
	}
	st, err := attest.Open(t.Context(), made.Channel.Attestation)
	if err != nil || st.Node != "n1" || st.Clients[0] != ada.pair.Public {
		t.Fatalf("%+v %v", st, err)
	}
	s.stop(t)
	s.start(t)
	again, err := s.reserve(t, ada, id, ask)
	if err != nil || again.Turn.Created.AsTime() != made.Turn.Created.AsTime() {
		t.Fatalf("%v %v", again, err)
	}
	_, err = s.reserve(t, ada, id, nil)
	want(t, "another request", err, turnstone.KindInvalid)
	other := of("ada")
	_, err = s.reserve(t, other, id, ask)
	want(t, "another client", err, turnstone.KindInvalid)

	connect := func(p person, pair channel.KeyPair) error {
		p.pair = pair
		_, err := call(t, s.ConnectTurn, &v1.NodeServiceConnectTurnRequest{Principal: p.Principal,
			Request: &v1.ConnectTurnRequest{TicketId: id, Client: p.client()}})
		return err
	}
	want(t, "its client", connect(ada, ada.pair), "")
	want(t, "another key", connect(ada, other.pair), turnstone.KindDenied)
	want(t, "another tenant", connect(eve, ada.pair), turnstone.KindNotFound)
	cancel := func(p person) (*v1.CancelTurnResponse, error) {
		return call(t, s.CancelTurn, &v1.NodeServiceCancelTurnRequest{Principal: p.Principal,
			Request: &v1.CancelTurnRequest{TicketId: id}})
	}
	_, err = cancel(eve)
	want(t, "another tenant", err, turnstone.KindNotFound)
	end, err := cancel(ada)
	if err != nil || end.Turn.State != v1.TurnState_TURN_STATE_EXPIRED {
		t.Fatalf("%v %v", end, err)
	}
	_, err = s.reserve(t, ada, ticketID(), func(q *v1.StartTurnRequest) { q.Session = sessionID() })
	want(t, "an unknown session", err, turnstone.KindNotFound)
}

// TestNode connects to the node itself.
func TestNode(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	ask := &v1.NodeServiceConnectNodeRequest{Principal: ada.Principal,
		Request: &v1.ConnectNodeRequest{Client: ada.client()}}
	r, err := call(t, s.ConnectNode, ask)
	if err != nil || r.Node != "n1" || r.Channel == nil {
		t.Fatalf("%v %v", r, err)
	}
	ask.Request.Node = "n2"
	_, err = call(t, s.ConnectNode, ask)
	want(t, "another node", err, turnstone.KindNotFound)
	c, err := call(t, s.ConnectTemplates, &v1.NodeServiceConnectTemplatesRequest{
		Principal: ada.Principal, Request: &v1.ConnectTemplatesRequest{Client: ada.client()}})
	if err != nil || c.Channel == nil {
		t.Fatalf("%v %v", c, err)
	}
	n, err := call(t, s.GetNode, &v1.GetNodeRequest{})
	if err != nil || n.Node.Name != "n1" || !strings.HasPrefix(n.Node.Key, "ssh-ed25519 ") ||
		n.Node.Version != "1" || n.Node.Started == nil {
		t.Fatalf("%v %v", n, err)
	}
}

// TestTemplates: names are never paths, and a tenant removes nothing that others use.
func TestTemplates(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	build := func(name string) error {
		_, err := call(t, s.BuildTemplate, &v1.NodeServiceBuildTemplateRequest{
			Principal: ada.Principal, Request: &v1.BuildTemplateRequest{Template: name}})
		return err
	}
	for _, name := range []string{"nothing", "x/../../../etc", "ghcr.io/../x"} {
		if err := build(name); turnstone.KindOf(err) != turnstone.KindNotFound &&
			turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	remove := func(name string) error {
		_, err := call(t, s.DeleteTemplate, &v1.NodeServiceDeleteTemplateRequest{
			Principal: ada.Principal, Request: &v1.DeleteTemplateRequest{Template: name}})
		return err
	}
	want(t, "the node's", remove("base"), turnstone.KindInvalid)
	want(t, "unknown", remove("nothing"), turnstone.KindNotFound)
	st, err := s.set.Of(t.Context(), ada.Principal.Tenant)
	if err != nil {
		t.Fatal(err)
	}
	object := owners.Template("mine")
	err = st.Owners.Claim(t.Context(), object, owners.Caller{Key: channel.NewKeyPair().Public})
	if err != nil {
		t.Fatal(err)
	}
	err = remove("mine")
	want(t, "another client's", err, turnstone.KindDenied)
	if !strings.Contains(turnstone.HintOf(err), "turn template rm") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	if err := st.Owners.Forget(object); err != nil {
		t.Fatal(err)
	}
	want(t, "of nobody, and unknown", remove("mine"), turnstone.KindNotFound)
}

// TestNamedKeys: whoever names the key of another client, with an own key as the owner, gets no
// content of that client: a call proves no client key.
func TestNamedKeys(t *testing.T) {
	s, ada, eve := newScene(t, nil), of("team"), of("team")
	s.made(t, ada, func(q *v1.CreateSandboxRequest) { q.ContextId = "work" })
	own := owner(t).Public.String()
	named := func(q *v1.CreateSandboxRequest) { q.Client, q.Owner = ada.client(), own }
	_, err := s.create(t, eve, sandboxID(), func(q *v1.CreateSandboxRequest) {
		named(q)
		q.ContextId = "work"
	})
	want(t, "a sandbox on the session", err, turnstone.KindInvalid)
	_, err = s.create(t, eve, sandboxID(), func(q *v1.CreateSandboxRequest) {
		named(q)
		q.Source = &v1.CreateSandboxRequest_SnapshotId{SnapshotId: "sn_0123456789abcdefgh"}
	})
	want(t, "a sandbox of a snapshot", err, turnstone.KindInvalid)
	_, err = call(t, s.CreateSession, &v1.NodeServiceCreateSessionRequest{Principal: eve.Principal,
		SessionId: string(turnstone.NewSessionID()), Request: &v1.CreateSessionRequest{
			Name: "planted", Client: ada.client(), Owner: own}})
	want(t, "a session", err, turnstone.KindInvalid)
}
