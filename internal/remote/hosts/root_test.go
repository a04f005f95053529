package hosts_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

func signer(t testing.TB, seed byte) *key.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// refused is in the error of a server that has no such channel: 404 alone may be in a path or a port.
const refused = "answers 404 "

// The keys of the tests: two roots, and nodes.
const (
	rootOne, rootTwo, rootOther = 10, 11, 12
	nodeOne, nodeTwo            = 1, 2
)

// cert returns a certificate of a node's key by a root.
func cert(t testing.TB, root, node byte, epoch uint64, change ...func(*attest.Certificate)) []byte {
	t.Helper()
	now := time.Now()
	c := attest.Certificate{Node: "n1", Key: signer(t, node).String(), Epoch: epoch,
		Time: now.Add(-time.Hour), Expires: now.Add(time.Hour)}
	for _, f := range change {
		f(&c)
	}
	b, err := attest.SignCertificate(t.Context(), c, signer(t, root))
	if err != nil {
		t.Fatal(err)
	}
	return attest.JoinChain(b, nil)
}

// followed adds the succession of rootOne by rootTwo to a certificate.
func followed(t testing.TB, chain []byte, epoch uint64) []byte {
	t.Helper()
	s, err := attest.SignSuccession(t.Context(), attest.Succession{Next: signer(t, rootTwo).String(),
		Epoch: epoch, Time: time.Now()}, signer(t, rootOne))
	if err != nil {
		t.Fatal(err)
	}
	return attest.JoinChain(bytes.TrimSuffix(chain, []byte("\n")), [][]byte{s})
}

// gateway answers the calls for channels with the statement and the certificate of its choice.
type gateway struct {
	connectv1.UnimplementedSessionServiceHandler
	connectv1.UnimplementedSandboxServiceHandler

	mu        sync.Mutex
	node      *key.Signer
	shown     []byte
	introduce bool
}

func (g *gateway) set(t *testing.T, node byte, shown []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.node, g.shown = signer(t, node), shown
}

func (g *gateway) channel(ctx context.Context, c *v1.ChannelClient, s attest.Statement) (*v1.Channel,
	error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.ServerKey, s.Nonce = channel.NewKeyPair().Public, attest.Nonce(c.Nonce)
	s.Clients = []channel.PublicKey{channel.PublicKey(c.ClientPublicKey)}
	s.Time, s.Expires, s.Tenant = time.Now(), time.Now().Add(time.Hour), "local"
	if s.Sandbox != "" {
		s.Tenant = ""
	}
	signed, err := attest.Sign(ctx, &s, g.node)
	if err != nil {
		return nil, err
	}
	if g.introduce && len(c.Proofs) == 0 {
		return nil, api.ToConnect(&api.Status{Reason: api.Unproven, Introduction: signed.Envelope,
			Certificate: g.shown, Err: turnstone.Errorf("client.prove", turnstone.KindDenied, "", "no")})
	}
	return &v1.Channel{Attestation: signed.Envelope, ServerPublicKey: s.ServerKey[:],
		Certificate: g.shown, Path: "/turnstone/v1/nodes/n1/channel"}, nil
}

func (g *gateway) ConnectNode(ctx context.Context, r *connect.Request[v1.ConnectNodeRequest]) (
	*connect.Response[v1.ConnectNodeResponse], error) {
	c, err := g.channel(ctx, r.Msg.Client, attest.Statement{Node: "n1"})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectNodeResponse{Channel: c, Node: "n1"}), nil
}

func (g *gateway) ConnectSandbox(ctx context.Context, r *connect.Request[v1.ConnectSandboxRequest]) (
	*connect.Response[v1.ConnectSandboxResponse], error) {
	c, err := g.channel(ctx, r.Msg.Client, attest.Statement{
		Sandbox: turnstone.SandboxID(r.Msg.SandboxId)})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectSandboxResponse{Channel: c}), nil
}

// A scene is a client that pins rootOne for a host behind a gateway.
type scene struct {
	*gateway
	store  hosts.Store
	client hosts.Client
}

func newScene(t *testing.T) *scene {
	t.Helper()
	g := &gateway{}
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewSessionServiceHandler(g))
	mux.Handle(connectv1.NewSandboxServiceHandler(g))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s := &scene{gateway: g, store: store(t)}
	s.client = hosts.Client{Dir: s.store.Dir.Root}
	if err := s.store.Change(t.Context(), func(l *hosts.List) error {
		h := &hosts.Host{URL: server.URL}
		l.SetRoot(h, signer(t, rootOne).String())
		l.Hosts["work"] = h
		l.Hosts["same"] = &hosts.Host{URL: "https://same.example",
			Root: &hosts.Root{Key: signer(t, rootOne).String()}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// connect opens a channel in a new process of the client. The error is nil if the client trusted the
// node: the gateway has no channel behind its statements.
func (s *scene) connect(t *testing.T, sandbox bool) error {
	t.Helper()
	server, err := s.client.Server(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	if sandbox {
		_, err = server.SandboxChannel(t.Context(), "sb_06h03ngqkbsd5up1q4")
	} else {
		_, err = server.NodeChannel(t.Context(), "n1")
	}
	if err == nil {
		t.Fatal("there is a channel")
	}
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		if !strings.Contains(err.Error(), refused) {
			t.Fatal(err)
		}
		return nil
	}
	if turnstone.HintOf(err) == "" {
		t.Errorf("no hint: %v", err)
	}
	return err
}

func (s *scene) root(t *testing.T, name string) *hosts.Root {
	t.Helper()
	l, err := s.store.Load()
	if err != nil {
		t.Fatal(err)
	}
	return l.Hosts[name].Root
}

// TestRoot: what a gateway shows in place of a certificate is named, and changes nothing. Each row
// is shown to the same client, in this order.
func TestRoot(t *testing.T) {
	s := newScene(t)
	later := func(c *attest.Certificate) { c.Time = time.Now().Add(10 * time.Minute) }
	expired := func(c *attest.Certificate) { c.Expires = time.Now().Add(-time.Minute) }
	two := func(c *attest.Certificate) { c.Node = "n2" }
	good := cert(t, rootOne, nodeOne, 1)
	for _, row := range []struct {
		what  string
		node  byte
		shown []byte
		fault channel.Fault
		root  byte
		epoch uint64
	}{
		{"stripped", nodeOne, nil, attest.FaultUncertified, rootOne, 0},
		{"another root's", nodeOne, cert(t, rootOther, nodeOne, 9), attest.FaultOtherRoot, rootOne, 0},
		{"a root that followed another one", nodeOne, followed(t, cert(t, rootTwo, nodeOne, 9), 9)[:300],
			channel.FaultForged, rootOne, 0},
		{"not yet valid", nodeOne, cert(t, rootOne, nodeOne, 9, later), attest.FaultCertEarly, rootOne, 0},
		{"expired", nodeOne, cert(t, rootOne, nodeOne, 9, expired), attest.FaultCertExpired, rootOne, 0},
		{"changed", nodeOne, append(bytes.Clone(good[:len(good)-9]), "AAAAAA\"}]}\n"...),
			channel.FaultForged, rootOne, 0},
		{"huge", nodeOne, bytes.Repeat([]byte("x\n"), 1<<20), channel.FaultForged, rootOne, 0},
		{"good", nodeOne, good, "", rootOne, 1},
		{"good, again", nodeOne, good, "", rootOne, 1},
		{"stripped later", nodeOne, nil, attest.FaultUncertified, rootOne, 1},
		{"another node behind it", nodeTwo, good, attest.FaultOtherNode, rootOne, 1},
		{"of another name", nodeOne, cert(t, rootOne, nodeOne, 1, two), attest.FaultOtherNode, rootOne, 1},
		{"a new key", nodeTwo, cert(t, rootOne, nodeTwo, 1), "", rootOne, 1},
		{"a new epoch", nodeOne, cert(t, rootOne, nodeOne, 3), "", rootOne, 3},
		{"downgraded", nodeOne, good, attest.FaultOldEpoch, rootOne, 3},
		{"an epoch between", nodeTwo, cert(t, rootOne, nodeTwo, 2), attest.FaultOldEpoch, rootOne, 3},
		{"an earlier succession", nodeOne, followed(t, cert(t, rootTwo, nodeOne, 9), 3),
			attest.FaultOldEpoch, rootOne, 3},
		{"a root without its succession", nodeOne, cert(t, rootTwo, nodeOne, 4), attest.FaultOtherRoot,
			rootOne, 3},
		{"rotated", nodeOne, followed(t, cert(t, rootTwo, nodeOne, 4), 4), "", rootTwo, 4},
		{"the old root", nodeOne, cert(t, rootOne, nodeOne, 9), attest.FaultOtherRoot, rootTwo, 4},
		{"without the succession now", nodeOne, cert(t, rootTwo, nodeOne, 4), "", rootTwo, 4},
	} {
		s.set(t, row.node, row.shown)
		for _, sandbox := range []bool{false, true} {
			if sandbox && row.what == "of another name" {
				continue // the statement of a sandbox names no node
			}
			err := s.connect(t, sandbox)
			if f := channel.FaultOf(err); f != row.fault {
				t.Errorf("%s (sandbox: %v): %q: %v", row.what, sandbox, f, err)
			}
			if err != nil && !strings.Contains(err.Error(), strings.ReplaceAll(string(row.fault), "_", " ")) {
				t.Errorf("%s: the error does not name %s: %v", row.what, row.fault, err)
			}
		}
		for _, host := range []string{"work", "same"} {
			if r := s.root(t, host); r.Key != signer(t, row.root).String() || r.Epoch != row.epoch {
				t.Errorf("after %q, %s has root %s in epoch %d", row.what, host, r.ID(), r.Epoch)
			}
		}
	}
}

// TestRootOfOneAddress: of two hosts with one address, each has its own root.
func TestRootOfOneAddress(t *testing.T) {
	s := newScene(t)
	if err := s.store.Change(t.Context(), func(l *hosts.List) error {
		other := &hosts.Host{URL: l.Hosts["work"].URL}
		l.SetRoot(other, signer(t, rootOther).String())
		l.Hosts["another"] = other
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.set(t, nodeOne, cert(t, rootOne, nodeOne, 5))
	if err := s.connect(t, false); err != nil {
		t.Error(err)
	}
	if r := s.root(t, "work"); r.Epoch != 5 {
		t.Error(r)
	}
	if r := s.root(t, "another"); r.Epoch != 0 || r.Key != signer(t, rootOther).String() {
		t.Error(r)
	}
}

// TestRootIntroduction: a node that asks for a proof introduces itself with its certificate.
func TestRootIntroduction(t *testing.T) {
	s := newScene(t)
	s.introduce = true
	s.set(t, nodeOne, nil)
	if err := s.connect(t, false); channel.FaultOf(err) != attest.FaultUncertified {
		t.Errorf("without a certificate: %v", err)
	}
	s.set(t, nodeTwo, cert(t, rootOne, nodeOne, 1))
	if err := s.connect(t, false); channel.FaultOf(err) != attest.FaultOtherNode {
		t.Errorf("with another node's: %v", err)
	}
	s.set(t, nodeOne, cert(t, rootOne, nodeOne, 2))
	if err := s.connect(t, false); err != nil {
		t.Error(err)
	}
	if r := s.root(t, "work"); r.Epoch != 2 {
		t.Error(r)
	}
}

// TestRootRevoked: what the user revokes is not trusted, whoever certified it.
func TestRootRevoked(t *testing.T) {
	for name, tc := range map[string]struct {
		revoked byte
		fault   channel.Fault
	}{"the node": {nodeOne, channel.FaultUntrusted}, "the root": {rootOne, attest.FaultRootRevoked}} {
		s := newScene(t)
		s.set(t, nodeOne, cert(t, rootOne, nodeOne, 1))
		if err := s.connect(t, false); err != nil {
			t.Fatal(err)
		}
		if _, err := (key.Ring{Dir: s.store.Dir}).Revoke(t.Context(), signer(t, tc.revoked).ID()); err != nil {
			t.Fatal(err)
		}
		if err := s.connect(t, false); channel.FaultOf(err) != tc.fault {
			t.Errorf("%s: %v", name, err)
		}
		trust, err := hosts.Trusted(s.store.Dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := trust.Vouch(signer(t, nodeOne).Public, key.Node, time.Now()); err == nil {
			t.Errorf("%s is revoked, and vouches for a turn", name)
		}
	}
}

// TestRootUnwritable: a client that cannot remember what it saw does not go on.
func TestRootUnwritable(t *testing.T) {
	s := newScene(t)
	s.set(t, nodeOne, cert(t, rootOne, nodeOne, 1))
	path := s.store.Dir.Path(hosts.File)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := s.client.Server(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path+"/full", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := server.NodeChannel(t.Context(), "n1"); err == nil || strings.Contains(err.Error(), refused) {
		t.Error(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.NodeChannel(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), refused) {
		t.Error(err)
	}
}

// TestRootTrust: a turn's signer is trusted in the time of the certificates that the client saw, and
// not after a later epoch.
func TestRootTrust(t *testing.T) {
	l := &hosts.List{Hosts: map[string]*hosts.Host{}}
	h := &hosts.Host{URL: "https://a"}
	l.SetRoot(h, signer(t, rootOne).String())
	l.Hosts["work"] = h
	learn := func(text []byte) {
		t.Helper()
		c, err := attest.OpenChain(t.Context(), text)
		if err == nil {
			_, err = l.Learn(h, c, time.Now())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	vouch := func(node byte, at time.Time) (key.Entry, error) {
		t.Helper()
		s := store(t)
		if err := s.Change(t.Context(), func(n *hosts.List) error { *n = *l; return nil }); err != nil {
			t.Fatal(err)
		}
		trust, err := hosts.Trusted(s.Dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		return trust.Vouch(signer(t, node).Public, key.Node, at)
	}
	learn(cert(t, rootOne, nodeOne, 1))
	e, err := vouch(nodeOne, now)
	if err != nil || e.Host != "work" || e.Name != "n1" {
		t.Error(e, err)
	}
	for _, at := range []time.Time{now.Add(-2 * time.Hour), now.Add(2 * time.Hour)} {
		if _, err := vouch(nodeOne, at); err == nil {
			t.Errorf("trusted at %s", at)
		}
	}
	if _, err := vouch(nodeTwo, now); err == nil {
		t.Error("a node that the client has not seen is trusted")
	}
	// a renewal extends the time
	learn(cert(t, rootOne, nodeOne, 1, func(c *attest.Certificate) {
		c.Time, c.Expires = now, now.Add(3*time.Hour)
	}))
	for _, at := range []time.Time{now.Add(-30 * time.Minute), now.Add(2 * time.Hour)} {
		if _, err := vouch(nodeOne, at); err != nil {
			t.Error(at, err)
		}
	}
	// a later epoch of another node ends the trust, until the node is certified in it
	learn(cert(t, rootOne, nodeTwo, 2))
	if _, err := vouch(nodeOne, now); err == nil {
		t.Error("a node of an earlier epoch is trusted")
	}
	learn(cert(t, rootOne, nodeOne, 2))
	for _, at := range []time.Time{now.Add(-30 * time.Minute), now.Add(2 * time.Hour)} {
		if _, err := vouch(nodeOne, at); err != nil {
			t.Error(at, err)
		}
	}
}

// TestRootBounds: the file has a bound, and the newest certificates stay.
func TestRootBounds(t *testing.T) {
	l := &hosts.List{Hosts: map[string]*hosts.Host{}}
	h := &hosts.Host{URL: "https://a"}
	l.SetRoot(h, signer(t, rootOne).String())
	l.Hosts["work"] = h
	for i := range 300 {
		text := cert(t, rootOne, byte(20+i%200), uint64(1+i/200))
		c, err := attest.OpenChain(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Learn(h, c, time.Now()); err != nil {
			t.Fatal(err)
		}
		// the same name with the times of another second is another entry
		c.Node = "m" + c.Node
		if _, err := l.Learn(h, c, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.Root.Nodes); n != 256 {
		t.Errorf("there are %d", n)
	}
	all, err := h.Root.Entries()
	if err != nil || len(all) != 200 {
		t.Errorf("there are %d of the last epoch: %v", len(all), err)
	}
	b, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := hosts.Parse(string(b))
	if err != nil || !reflect.DeepEqual(again.Hosts["work"].Root, h.Root) {
		t.Error(err)
	}
}

// TestSetRoot: what a client knows of a root counts for its next host.
func TestSetRoot(t *testing.T) {
	l := &hosts.List{Hosts: map[string]*hosts.Host{
		"a": {URL: "https://a", Root: &hosts.Root{Key: one, Epoch: 7}}}}
	h := &hosts.Host{URL: "https://b", Nodes: map[string][]string{"n1": {two}}}
	if l.SetRoot(h, one); h.Root.Epoch != 7 || len(h.Nodes) != 0 {
		t.Error(h)
	}
	if l.SetRoot(h, two); h.Root.Epoch != 0 {
		t.Error(h.Root)
	}
}

// TestParseRoot: damaged roots are errors.
func TestParseRoot(t *testing.T) {
	good := "[hosts.a]\nurl = \"https://a\"\n[hosts.a.root]\nkey = \"" + one + "\"\nepoch = 2\n" +
		"[[hosts.a.root.nodes]]\nname = \"n1\"\nkey = \"" + two + "\"\nepoch = 2\n" +
		"after = 2026-01-01T00:00:00Z\nbefore = 2026-02-01T00:00:00Z\n"
	if l, err := hosts.Parse(good); err != nil || len(l.Hosts["a"].Root.Nodes) != 1 {
		t.Fatal(err)
	}
	for _, change := range [][2]string{{one, "x"}, {two, "x"}, {"epoch = 2\n[[", "epoch = -1\n[["},
		{"epoch = 2\n[[", "epoch = 1\n[["}, {"epoch = 2\n[[", "epoch = 9000000000\n[["},
		{"\"n1\"", "\"a b\""}, {"2026-02", "2025-02"}, {"key = \"" + two + "\"", "root = 1"},
		{"[hosts.a.root]", "root = 1\n[hosts.a.other]"}, {"[[hosts.a.root.nodes]]", "[hosts.a.root.nodes]"}} {
		text := strings.Replace(good, change[0], change[1], 1)
		if _, err := hosts.Parse(text); err == nil {
			t.Errorf("%q in place of %q is a list", change[1], change[0])
		}
	}
}
