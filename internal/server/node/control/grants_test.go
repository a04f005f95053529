package control_test

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
)

// enter opens the channel of a sandbox under a statement, and closes it.
func (s *scene) enter(t *testing.T, p person, c *v1.Channel) error {
	t.Helper()
	signed, err := attest.Open(t.Context(), c.Attestation)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.set.Holding(signed.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := st.Sandboxes.OpenChannel(t.Context(), signed.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := channel.Client(t.Context(), stream, channel.ClientConfig{Key: p.pair,
		Server: signed.ServerKey, Statement: signed.Digest})
	if err == nil {
		err = conn.Close()
	}
	return err
}

// TestKeys: a token of the tenant opens no channel. A grant of the owner does.
func TestKeys(t *testing.T) {
	s, ada, bob, sign := newScene(t, nil), of("team"), of("team"), owner(t)
	id := s.made(t, ada, func(q *v1.CreateSandboxRequest) {
		q.Owner, q.ManagedBy = sign.Public.String(), "test/parent"
	}).SandboxId
	_, err := s.connect(t, bob, id)
	want(t, "another key", err, turnstone.KindInvalid)
	fork := func(p person) error {
		made, err := call(t, s.ForkSandbox, &v1.NodeServiceForkSandboxRequest{Principal: p.Principal,
			SandboxIds: []string{sandboxID()}, Request: &v1.ForkSandboxRequest{SandboxId: id,
				Clients: []*v1.ChannelClient{p.client()}}})
		if err == nil && made.Clones[0].Sandbox.ManagedBy != "" {
			t.Error("a clone is managed as its parent is")
		}
		return err
	}
	want(t, "a clone for another key", fork(bob), turnstone.KindInvalid)

	grant := attest.Grant{Sandbox: turnstone.SandboxID(id), Client: bob.pair.Public,
		Scopes: []attest.Scope{attest.ScopeWrite}, Number: 2, Time: time.Now().Add(-time.Minute),
		Expires: time.Now().Add(30 * time.Minute)}
	seal := func(change func(*attest.Grant), by string) []byte {
		g, signer := grant, sign
		if change != nil {
			change(&g)
		}
		if by != "" {
			signer = owner(t)
		}
		b, err := attest.SignGrant(t.Context(), &g, signer)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"of another owner": seal(nil, "another"),
		"of another sandbox": seal(func(g *attest.Grant) {
			g.Sandbox = turnstone.NewSandboxID()
		}, ""),
		"expired": seal(func(g *attest.Grant) {
			g.Time, g.Expires = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}, ""),
		"for reading": seal(func(g *attest.Grant) {
			g.Scopes = []attest.Scope{attest.ScopeRead}
		}, ""),
		"for another client": seal(func(g *attest.Grant) { g.Client, g.Number = of("x").pair.Public, 1 }, ""),
		"noise":              []byte("{}"),
	} {
		if r, err := s.connect(t, bob, id, b...); err == nil {
			t.Errorf("a grant %s: %v", name, r)
		}
	}
	if _, err := s.connect(t, bob, id, seal(nil, "")...); err != nil {
		t.Fatal(err)
	}
	if _, err := s.connect(t, bob, id, seal(nil, "")...); err != nil { // in effect already
		t.Fatal(err)
	}
	his, err := s.connect(t, bob, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.enter(t, bob, his.Channel); err != nil {
		t.Fatal(err)
	}
	if e := his.Channel.Expires.AsTime(); e.After(grant.Expires) {
		t.Errorf("his statement ends at %s, his grant at %s", e, grant.Expires)
	}
	if err := fork(bob); err != nil {
		t.Fatal(err)
	}
	his, err = s.connect(t, bob, id) // a fork ends statements
	if err != nil {
		t.Fatal(err)
	}
	hers, err := s.connect(t, ada, id)
	if err == nil {
		err = s.enter(t, bob, his.Channel)
	}
	if err != nil {
		t.Fatal(err)
	}
	// withdrawn, and the old grant does not bring it back
	if _, err := s.connect(t, ada, id, seal(func(g *attest.Grant) {
		g.Scopes, g.Number = []attest.Scope{}, 3
	}, "")...); err != nil {
		t.Fatal(err)
	}
	_, err = s.connect(t, bob, id)
	want(t, "withdrawn", err, turnstone.KindInvalid)
	want(t, "a statement that he has kept", s.enter(t, bob, his.Channel), turnstone.KindNotFound)
	if err := s.enter(t, ada, hers.Channel); err != nil {
		t.Error(err)
	}
	if _, err = s.connect(t, bob, id, seal(nil, "")...); err == nil {
		t.Fatal("an old grant took effect")
	}
}
