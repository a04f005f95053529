package control_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node/control"
)

// proved is a request of ada's to create a sandbox, proved to the node now, with the changes of a
// controller afterwards.
func proved(t *testing.T, s *scene, p person, at time.Time) *v1.NodeServiceCreateSandboxRequest {
	t.Helper()
	q := &v1.CreateSandboxRequest{Client: p.client(), IdempotencyKey: "k",
		Source:  &v1.CreateSandboxRequest_Template{Template: "fine"},
		Machine: &v1.Machine{Cpus: 1, Memory: 1 << 30, Disk: 1 << 30}}
	proveTo(t, p.pair, "n1", s.nodeKey(t), p.Tenant, q, q.Client, at)
	return &v1.NodeServiceCreateSandboxRequest{Principal: p.Principal, Request: q,
		SandboxId: sandboxID()}
}

func reasonOf(err error) string {
	var s *api.Status
	_ = errors.As(err, &s)
	if s == nil {
		return ""
	}
	return s.Reason
}

// TestHostileController: a controller, or a gateway, that has a client's proved call can make that
// call, once, and no other in the client's name.
func TestHostileController(t *testing.T) {
	s, other, ada, eve := newScene(t, nil), newScene(t, nil), of("ada"), of("ada")
	now := time.Now()
	for name, tt := range map[string]struct {
		change func(*v1.NodeServiceCreateSandboxRequest)
		to     *scene
		at     time.Time
		reason string
	}{
		"no proof": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Client.Proofs = nil
		}, reason: "proof"},
		"a key of its choice": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Client.ClientPublicKey = eve.client().ClientPublicKey
		}, reason: "proof"},
		"its own proof for the victim's key": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			proveTo(t, eve.pair, "n1", s.nodeKey(t), "ada", r.Request, r.Request.Client, now)
		}, reason: "proof"},
		"a variable": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Env = map[string]string{"LD_PRELOAD": "/x"}
		}, reason: "proof"},
		"another template": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Source = &v1.CreateSandboxRequest_Template{Template: "base"}
		}, reason: "proof"},
		"a session": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.ContextId = "stolen"
		}, reason: "proof"},
		"an owner": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Owner = owner(t).String()
		}, reason: "proof"},
		"another nonce": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Client.Nonce = eve.client().Nonce
		}, reason: "proof"},
		"another idempotency key": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.IdempotencyKey = "k2"
		}, reason: "proof"},
		"another tenant": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Principal = of("mallory").Principal
		}, reason: "proof"},
		"another node":      {to: other, reason: "proof"},
		"after the window":  {at: now.Add(-3 * time.Minute), reason: "clock"},
		"before the window": {at: now.Add(3 * time.Minute), reason: "clock"},
		"bytes of its own": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Client.Proofs[0].Message[40] ^= 1
		}, reason: "proof"},
		"a proof for another": {change: func(r *v1.NodeServiceCreateSandboxRequest) {
			r.Request.Client.Proofs[0].Node = "n2"
		}, reason: "proof"},
	} {
		t.Run(name, func(t *testing.T) {
			at, to := tt.at, tt.to
			if at.IsZero() {
				at = time.Now()
			}
			if to == nil {
				to = s
			}
			r := proved(t, s, ada, at)
			if tt.change != nil {
				tt.change(r)
			}
			_, err := call(t, to.bare.CreateSandbox, r)
			if turnstone.KindOf(err) != turnstone.KindDenied || reasonOf(err) != tt.reason {
				t.Fatalf("%v, %q", err, reasonOf(err))
			}
			if _, err := to.set.Known("mallory"); err == nil {
				t.Error("a tenant was made")
			}
			if st, err := to.set.Known("ada"); err == nil {
				if all, err := st.Sandboxes.List(t.Context()); err != nil || len(all) > 0 {
					t.Errorf("sandboxes were made: %v, %v", all, err)
				}
			}
		})
	}
}

// TestReplay: a proof is used once, and for the procedure that it was made for.
func TestReplay(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	r := proved(t, s, ada, time.Now())
	if _, err := call(t, s.bare.CreateSandbox, r); err != nil {
		t.Fatal(err)
	}
	id := r.SandboxId
	for range 2 { // the same object, and another one
		_, err := call(t, s.bare.CreateSandbox, r)
		if reasonOf(err) != "replayed" {
			t.Errorf("a replay: %v", err)
		}
		r.SandboxId = sandboxID()
	}
	// the messages of these procedures have the same fields
	pause := &v1.PauseSandboxRequest{SandboxId: id, Client: ada.client()}
	proveTo(t, ada.pair, "n1", s.nodeKey(t), "ada", pause, pause.Client, time.Now())
	_, err := call(t, s.bare.DeleteSandbox, &v1.NodeServiceDeleteSandboxRequest{
		Principal: ada.Principal, Request: &v1.DeleteSandboxRequest{SandboxId: id,
			Client: pause.Client}})
	if reasonOf(err) != "proof" {
		t.Errorf("another procedure: %v", err)
	}
	// a repeated creation opens the sandbox that it made, and no other
	mine := s.made(t, ada, func(q *v1.CreateSandboxRequest) { q.Name = "mine" }).SandboxId
	for at, kind := range map[string]turnstone.Kind{id: "", mine: turnstone.KindNotFound} {
		again := proved(t, s, ada, time.Now())
		_, err = call(t, s.bare.ConnectSandbox, &v1.NodeServiceConnectSandboxRequest{
			Principal: ada.Principal,
			Request:   &v1.ConnectSandboxRequest{SandboxId: at, Client: again.Request.Client},
			Made:      &v1.NodeServiceConnectSandboxRequest_Create{Create: again.Request}})
		want(t, "a repetition", err, kind)
	}
	// a restart of the node forgets which proofs were used, and makes all of them worthless
	late := proved(t, s, ada, time.Now())
	s.stop(t)
	s.start(t)
	if _, err := call(t, s.bare.CreateSandbox, late); reasonOf(err) != "proof" {
		t.Errorf("an earlier process's: %v", err)
	}
}

// TestIntroduction: who is refused for a missing proof learns to whom it has to be made.
func TestIntroduction(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	c := ada.client()
	_, err := call(t, s.bare.ConnectNode, &v1.NodeServiceConnectNodeRequest{
		Principal: ada.Principal, Request: &v1.ConnectNodeRequest{Client: c}})
	var status *api.Status
	if !api.IsUnproven(err) || !errors.As(err, &status) {
		t.Fatal(err)
	}
	signed, err := attest.Open(t.Context(), status.Introduction)
	if err != nil {
		t.Fatal(err)
	}
	if signed.Node != "n1" || signed.Tenant != "ada" || signed.ServerKey != s.nodeKey(t) ||
		signed.Nonce != attest.Nonce(c.Nonce) {
		t.Errorf("%+v", signed.Statement)
	}
	_, err = s.host(t, ada, "node:n1", func(c *v1.ChannelClient) (*v1.Channel, error) {
		_, err := call(t, s.bare.ConnectNode, &v1.NodeServiceConnectNodeRequest{
			Principal: ada.Principal, Request: &v1.ConnectNodeRequest{Client: c}})
		if !errors.As(err, &status) {
			return nil, err
		}
		return &v1.Channel{Attestation: status.Introduction,
			Path: "/turnstone/v1/nodes/n1/channel"}, nil
	}).Open(t.Context())
	if err == nil {
		t.Error("an introduction admits a client to the channel")
	}
}

// attempts are the control calls on what another client made, as a caller makes them.
func attempts(s *scene, box, snap, ticket, session string) map[string]func(
	*v1.Principal, *v1.ChannelClient, func(proto.Message, *v1.ChannelClient)) error {
	type prove = func(proto.Message, *v1.ChannelClient)
	ctx := context.Background()
	return map[string]func(*v1.Principal, *v1.ChannelClient, prove) error{
		"pause": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.PauseSandboxRequest{SandboxId: box, Client: c}
			f(q, c)
			_, err := s.bare.PauseSandbox(ctx, connect.NewRequest(
				&v1.NodeServicePauseSandboxRequest{Principal: p, Request: q}))
			return err
		},
		"resume": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.ResumeSandboxRequest{SandboxId: box, Client: c}
			f(q, c)
			_, err := s.bare.ResumeSandbox(ctx, connect.NewRequest(
				&v1.NodeServiceResumeSandboxRequest{Principal: p, Request: q}))
			return err
		},
		"timeout": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.SetSandboxTimeoutRequest{SandboxId: box, Client: c,
				Timeout: durationpb.New(time.Minute)}
			f(q, c)
			_, err := s.bare.SetSandboxTimeout(ctx, connect.NewRequest(
				&v1.NodeServiceSetSandboxTimeoutRequest{Principal: p, Request: q}))
			return err
		},
		"expose": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.ExposePortRequest{SandboxId: box, Port: 80, Client: c}
			f(q, c)
			_, err := s.bare.ExposePort(ctx, connect.NewRequest(
				&v1.NodeServiceExposePortRequest{Principal: p, Request: q}))
			return err
		},
		"snapshot": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.SnapshotSandboxRequest{SandboxId: box, Client: c}
			f(q, c)
			_, err := s.bare.SnapshotSandbox(ctx, connect.NewRequest(
				&v1.NodeServiceSnapshotSandboxRequest{Principal: p, Request: q,
					SnapshotId: snapshotID()}))
			return err
		},
		"delete the snapshot": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.DeleteSnapshotRequest{SnapshotId: snap, Client: c}
			f(q, c)
			_, err := s.bare.DeleteSnapshot(ctx, connect.NewRequest(
				&v1.NodeServiceDeleteSnapshotRequest{Principal: p, Request: q}))
			return err
		},
		"delete": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.DeleteSandboxRequest{SandboxId: box, Client: c}
			f(q, c)
			_, err := s.bare.DeleteSandbox(ctx, connect.NewRequest(
				&v1.NodeServiceDeleteSandboxRequest{Principal: p, Request: q}))
			return err
		},
		"cancel": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.CancelTurnRequest{TicketId: ticket, Client: c}
			f(q, c)
			_, err := s.bare.CancelTurn(ctx, connect.NewRequest(
				&v1.NodeServiceCancelTurnRequest{Principal: p, Request: q}))
			return err
		},
		"rename": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.RenameSessionRequest{Session: "work", NewName: "work", Client: c}
			f(q, c)
			_, err := s.bare.RenameSession(ctx, connect.NewRequest(
				&v1.NodeServiceRenameSessionRequest{Principal: p, Request: q, SessionId: session}))
			return err
		},
		"delete the session": func(p *v1.Principal, c *v1.ChannelClient, f prove) error {
			q := &v1.DeleteSessionRequest{Session: "work", Client: c}
			f(q, c)
			_, err := s.bare.DeleteSession(ctx, connect.NewRequest(
				&v1.NodeServiceDeleteSessionRequest{Principal: p, Request: q, SessionId: session}))
			return err
		},
	}
}

// TestOthersObjects: a client of the tenant, with every scope but the administrative ones, ends and
// changes nothing of another client, and an administrator does where the node believes the scope.
func TestOthersObjects(t *testing.T) {
	for _, trust := range []bool{false, true} {
		s := newScene(t, func(o *control.Options) { o.TrustController = trust })
		ada, bob, eve, root := of("a"), of("a"), of("e"), of("a")
		bob.Scopes = []string{"sandboxes:*", "turns:*", "sessions:*"}
		root.Scopes = []string{"sandboxes:admin", "turns:admin", "sessions:admin"}
		box, snap, ticket := s.made(t, ada, nil).SandboxId, snapshotID(), ticketID()
		if _, err := call(t, s.SnapshotSandbox, &v1.NodeServiceSnapshotSandboxRequest{
			Principal: ada.Principal, SnapshotId: snap,
			Request: &v1.SnapshotSandboxRequest{SandboxId: box}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.reserve(t, ada, ticket, nil); err != nil {
			t.Fatal(err)
		}
		made, err := s.session(t, ada, sessionID(), "work")
		if err != nil {
			t.Fatal(err)
		}
		key := s.nodeKey(t)
		as := func(p person) func(proto.Message, *v1.ChannelClient) {
			return func(m proto.Message, c *v1.ChannelClient) {
				if c != nil {
					proveTo(t, p.pair, "n1", key, p.Tenant, m, c, time.Now())
				}
			}
		}
		forged := func(m proto.Message, c *v1.ChannelClient) {
			proveTo(t, bob.pair, "n1", key, "a", m, c, time.Now())
		}
		calls := attempts(s, box, snap, ticket, made.Session.SessionId)
		for name, try := range calls {
			err := api.FromConnect(try(bob.Principal, bob.client(), as(bob)))
			want(t, name+" with another key", err, turnstone.KindDenied)
			if err == nil || !strings.Contains(err.Error(), "exists and belongs to another client key") ||
				!strings.Contains(turnstone.HintOf(err), ":admin") {
				t.Errorf("%s: %v (%s)", name, err, turnstone.HintOf(err))
			}
			err = api.FromConnect(try(bob.Principal, nil, as(bob)))
			want(t, name+" without a key", err, turnstone.KindDenied)
			err = api.FromConnect(try(bob.Principal, ada.client(), forged))
			if reasonOf(err) != "proof" {
				t.Errorf("%s with the victim's key: %v", name, err)
			}
			err = api.FromConnect(try(eve.Principal, eve.client(), as(eve)))
			want(t, name+" of another tenant", err, turnstone.KindNotFound)
			if !trust {
				err = api.FromConnect(try(root.Principal, root.client(), as(root)))
				want(t, name+" by a controller's word", err, turnstone.KindDenied)
				if !strings.Contains(turnstone.HintOf(err), "node.trust_controller") {
					t.Errorf("%s: %s", name, turnstone.HintOf(err))
				}
			}
		}
		by := ada
		if trust {
			by = root
		}
		for _, name := range []string{"timeout", "snapshot", "delete the snapshot", "delete", "cancel",
			"rename", "delete the session"} {
			want(t, name+" by who may", api.FromConnect(calls[name](by.Principal, by.client(),
				as(by))), "")
		}
	}
}

// TestOpenSandbox: a sandbox that was created without a client's key is everybody's of the tenant.
func TestOpenSandbox(t *testing.T) {
	s, ada, bob := newScene(t, nil), of("a"), of("a")
	free := func(q *v1.CreateSandboxRequest) { q.Client = nil }
	r, err := s.create(t, ada, sandboxID(), free)
	if err != nil || r.Channel != nil {
		t.Fatal(r, err)
	}
	id := r.Sandbox.SandboxId
	if _, err := s.connect(t, bob, id); err != nil {
		t.Errorf("a client of the tenant: %v", err)
	}
	_, err = s.connect(t, of("e"), id)
	want(t, "another tenant", err, turnstone.KindNotFound)
	_, err = s.create(t, ada, sandboxID(), func(q *v1.CreateSandboxRequest) {
		q.Client, q.ContextId = nil, "work"
	})
	want(t, "a session", err, turnstone.KindInvalid)
	if _, err := s.remove(t, bob, id); err != nil {
		t.Errorf("a client of the tenant removes it: %v", err)
	}
}

// TestOtherSession: a controller brings a proved call into no session that the caller did not name.
func TestOtherSession(t *testing.T) {
	s, ada := newScene(t, nil), of("a")
	made, err := s.session(t, ada, sessionID(), "work")
	if err != nil {
		t.Fatal(err)
	}
	for _, named := range []string{"", "other"} {
		q := &v1.StartTurnRequest{IdempotencyKey: "k", Client: ada.client(), Session: named}
		_, err = call(t, s.ReserveTurn, &v1.NodeServiceReserveTurnRequest{Principal: ada.Principal,
			Request: q, TicketId: ticketID(), SessionId: made.Session.SessionId})
		want(t, "a turn in "+named, err, turnstone.KindNotFound)
	}
	c := &v1.CreateSandboxRequest{Client: ada.client(),
		Source: &v1.CreateSandboxRequest_Template{Template: "fine"}}
	r, err := call(t, s.CreateSandbox, &v1.NodeServiceCreateSandboxRequest{Principal: ada.Principal,
		Request: c, SandboxId: sandboxID(), SessionId: made.Session.SessionId})
	if err != nil || r.Sandbox.ContextId != "" {
		t.Errorf("%v, %v", r.GetSandbox(), err)
	}
	_, err = call(t, s.DeleteSession, &v1.NodeServiceDeleteSessionRequest{Principal: ada.Principal,
		Request: &v1.DeleteSessionRequest{Session: "other"}, SessionId: made.Session.SessionId})
	want(t, "delete", err, turnstone.KindNotFound)
}
