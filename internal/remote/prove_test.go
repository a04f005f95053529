package remote_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	apiserve "turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	nodes "turnstone.dev/turnstone/internal/server/node"
)

// asking is a control API in front of nodes that ask for proofs, each call at the next node.
type asking struct {
	connectv1.UnimplementedSandboxServiceHandler
	nodes  []*nodes.Node
	tenant string // that the nodes hear

	mu    sync.Mutex
	calls int
	place func(call int) int

	together int // calls at the beginning that are refused when all of them are there
	first    sync.WaitGroup
}

func (a *asking) check(ctx context.Context, m proto.Message, c *v1.ChannelClient) error {
	a.mu.Lock()
	n := a.nodes[a.place(a.calls)]
	if a.calls++; a.calls <= a.together {
		a.first.Done()
	}
	a.mu.Unlock()
	for _, p := range c.GetProofs() {
		if p.Node == n.Name() && n.Prove(channel.PublicKey(c.ClientPublicKey), p.Message,
			channel.Claim{Tenant: a.tenant, Request: api.ProofDigest(m)}) == "" {
			return nil
		}
	}
	a.first.Wait()
	signed, err := n.Introduce(ctx, nodes.Client{Key: channel.PublicKey(c.GetClientPublicKey()),
		Nonce: attest.Nonce(c.GetNonce()), Tenant: a.tenant})
	if err != nil {
		return err
	}
	return &api.Status{Reason: api.Unproven, Introduction: signed.Envelope,
		Err: turnstone.Errorf("client.prove", turnstone.KindDenied, "key", "is not proved")}
}

func (a *asking) DeleteSandbox(ctx context.Context, r *connect.Request[v1.DeleteSandboxRequest]) (
	*connect.Response[v1.DeleteSandboxResponse], error) {
	return connect.NewResponse(&v1.DeleteSandboxResponse{}), a.check(ctx, r.Msg, r.Msg.Client)
}

// ListSandboxes introduces a node to a call that asked for none.
func (a *asking) ListSandboxes(ctx context.Context, r *connect.Request[v1.ListSandboxesRequest]) (
	*connect.Response[v1.ListSandboxesResponse], error) {
	client := channel.NewKeyPair().Public
	return nil, a.check(ctx, r.Msg, &v1.ChannelClient{ClientPublicKey: client[:],
		Nonce: bytes.Repeat([]byte{7}, 32)})
}

// book is a remote.NodeBook in memory.
type book struct {
	mu  sync.Mutex
	all []remote.NodeKey
}

func (b *book) Nodes() []remote.NodeKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

func (b *book) Remember(all []remote.NodeKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = all
}

type askingScene struct {
	*asking
	book  *book
	trust *key.Trust
	key   channel.KeyPair
	http  *httptest.Server
}

func newAsking(t *testing.T, names ...string) *askingScene {
	s := &askingScene{asking: &asking{tenant: "acme", place: func(int) int { return 0 }},
		book: &book{}, trust: &key.Trust{}, key: channel.NewKeyPair()}
	for i, name := range names {
		own := signer(t, byte(i+1))
		s.trust.Add(key.Entry{Key: own.Public, Role: key.Node})
		n := nodes.New(nodes.Options{Name: name, Key: own})
		t.Cleanup(func() { _ = n.Close() })
		s.nodes = append(s.nodes, n)
	}
	s.http = httptest.NewServer(apiserve.Services{Sandboxes: s.asking}.Handler(
		func(_ context.Context, procedure string, err error) { t.Errorf("%s: %v", procedure, err) }))
	t.Cleanup(s.http.Close)
	return s
}

// connect returns the server to a process of the client.
func (s *askingScene) connect(t *testing.T, token string) *remote.Server {
	t.Helper()
	c := remote.NewServer(remote.ServerOptions{Address: address(t, s.http.URL), Key: s.key,
		Book: s.book, Token: func() (string, error) { return token, nil },
		Pins: func(context.Context, string, []byte) (attest.Pins, error) { return s.trust, nil }})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// remove makes a call in a process of its own, with a token.
func (s *askingScene) remove(t *testing.T, token string) (int, error) {
	t.Helper()
	c := s.connect(t, token)
	before := s.calls
	err := c.AllSandboxes().Remove(t.Context(), turnstone.NewSandboxID())
	return s.calls - before, err
}

// TestProves: a client proves its key to nodes that it knows without another round trip, also in a
// later process, and learns the keys of others from their refusals.
func TestProves(t *testing.T) {
	s := newAsking(t, "n1", "n2")
	for i, tt := range []struct {
		what  string
		place func(int) int
		calls int
	}{
		{"the first call", func(int) int { return 0 }, 2},
		{"a later process", func(int) int { return 0 }, 1},
		{"another node", func(int) int { return 1 }, 2},
		{"the first node", func(int) int { return 0 }, 1},
		{"any node", func(call int) int { return call % 2 }, 1},
	} {
		s.place = tt.place
		if calls, err := s.remove(t, "x"); err != nil || calls != tt.calls {
			t.Errorf("%d, %s: %d calls, want %d: %v", i, tt.what, calls, tt.calls, err)
		}
	}
	again := nodes.New(nodes.Options{Name: "n1", Key: signer(t, 1)})
	t.Cleanup(func() { _ = again.Close() })
	s.nodes[0], s.place = again, func(int) int { return 0 }
	if calls, err := s.remove(t, "x"); err != nil || calls != 2 {
		t.Errorf("after the node's restart: %d calls: %v", calls, err)
	}
	s.tenant = "other"
	if calls, err := s.remove(t, "x"); err != nil || calls != 2 {
		t.Errorf("a token of another tenant: %d calls: %v", calls, err)
	}
}

// TestProvesTogether: of calls at the same time, before the client knows the node, each is made again,
// though the first of them has learnt the node's key for all.
func TestProvesTogether(t *testing.T) {
	s := newAsking(t, "n1")
	s.together = 8
	s.first.Add(s.together)
	c := s.connect(t, "x")
	all := make(chan error, s.together)
	for range s.together {
		go func() { all <- c.AllSandboxes().Remove(t.Context(), turnstone.NewSandboxID()) }()
	}
	for range s.together {
		if err := <-all; err != nil {
			t.Error(err)
		}
	}
}

// TestProvesToNobodyElse: a client remembers no key of a node that it does not trust, and none for
// another tenant than its token's.
func TestProvesToNobodyElse(t *testing.T) {
	s := newAsking(t, "n1")
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"tenant":"other"}`))
	if calls, err := s.remove(t, "e30."+claims+".x"); channel.FaultOf(err) != channel.FaultSpliced ||
		calls != 1 {
		t.Errorf("another tenant: %d calls: %v", calls, err)
	}
	c := s.connect(t, "x") // a call without a client has no nonce, and nothing answers it
	if _, err := c.AllSandboxes().List(t.Context()); channel.FaultOf(err) != channel.FaultReplayed ||
		s.calls != 2 {
		t.Errorf("an introduction that was not asked for: %d calls: %v", s.calls, err)
	}
	s.trust = &key.Trust{}
	if calls, err := s.remove(t, "x"); channel.FaultOf(err) != channel.FaultUntrusted || calls != 1 {
		t.Errorf("an untrusted node: %d calls: %v", calls, err)
	}
	if all := s.book.Nodes(); len(all) > 0 {
		t.Errorf("%v are remembered", all)
	}
}
