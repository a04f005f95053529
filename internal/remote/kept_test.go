package remote_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

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
	"turnstone.dev/turnstone/sandboxes"
)

// boxID is the sandbox of a box.
const boxID turnstone.SandboxID = "sb_000000000000000001"

// A box is a sandbox behind a node and its control API. Its agent says "hello" in each channel.
type box struct {
	connectv1.UnimplementedSandboxServiceHandler
	node *nodes.Node
	wg   sync.WaitGroup

	connections atomic.Int32 // to the server

	mu    sync.Mutex
	asked int // statements
	key   channel.KeyPair
	known *channel.Statements

	certificate []byte // that answers have
}

func (b *box) ConnectSandbox(ctx context.Context, r *connect.Request[v1.ConnectSandboxRequest]) (
	*connect.Response[v1.ConnectSandboxResponse], error) {
	b.mu.Lock()
	b.asked++
	b.mu.Unlock()
	c := r.Msg.Client
	s, err := b.node.AttestSandbox(ctx, turnstone.SandboxID(r.Msg.SandboxId), nodes.Client{
		Key: channel.PublicKey(c.ClientPublicKey), Nonce: attest.Nonce(c.Nonce)})
	if err != nil {
		return nil, api.ToConnect(err)
	}
	return connect.NewResponse(&v1.ConnectSandboxResponse{Channel: &v1.Channel{
		Attestation: s.Envelope, ServerPublicKey: s.ServerKey[:], Certificate: b.certificate,
		Path: "/turnstone/v1/sandboxes/" + r.Msg.SandboxId + "/channel"}}), nil
}

func (b *box) Seal(_ context.Context, _ turnstone.SandboxID, s sandboxes.Seal) (
	sandboxes.ChannelKey, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.Statement == "" {
		return b.key.Public, nil
	}
	return b.key.Public, b.known.Add(s.Statement, []channel.PublicKey{s.Clients[0]}, s.Expires)
}

type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

func (b *box) OpenChannel(ctx context.Context, _ turnstone.SandboxID) (sandboxes.ChannelStream,
	error) {
	near, far := net.Pipe()
	b.mu.Lock()
	config := channel.ServerConfig{Key: b.key, Registry: b.known}
	b.mu.Unlock()
	b.wg.Go(func() {
		c, err := channel.Server(ctx, far, config)
		if err == nil {
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		}
	})
	return halfPipe{near}, nil
}

// change changes what the agent knows.
func (b *box) change(f func(b *box)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// notes is a StatementBook.
type notes map[turnstone.SandboxID]remote.KeptStatement

func (n notes) Statement(id turnstone.SandboxID) (remote.KeptStatement, bool) {
	k, has := n[id]
	return k, has
}
func (n notes) Keep(id turnstone.SandboxID, k remote.KeptStatement) { n[id] = k }
func (n notes) Drop(id turnstone.SandboxID)                         { delete(n, id) }

// boxed is a box with its server, and a client's options.
type boxed struct {
	*box
	signer *key.Signer
	trust  *key.Trust
	notes  notes
	o      remote.ServerOptions
}

func newBox(t *testing.T) *boxed {
	b := &boxed{box: &box{key: channel.NewKeyPair(), known: &channel.Statements{}},
		signer: signer(t, 1), trust: &key.Trust{}, notes: notes{}}
	b.trust.Add(key.Entry{Key: b.signer.Public, Role: key.Node})
	b.node = nodes.New(nodes.Options{Name: "n1", Key: b.signer, Sandboxes: b.box})
	mux := http.NewServeMux()
	mux.Handle("/turnstone/v1/", b.node.Handler())
	mux.Handle("/", apiserve.Services{Sandboxes: b.box}.Handler(nil))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})
	s := httptest.NewUnstartedServer(mux)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			b.connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(func() { _ = b.node.Close(); s.Close(); b.wg.Wait() })
	b.o = remote.ServerOptions{Address: address(t, s.URL), Key: channel.NewKeyPair(),
		Pins: func(context.Context, string, []byte) (attest.Pins, error) { return b.trust, nil }, Statements: b.notes}
	return b
}

// hello opens a channel with a client of its own, as a new process has one, and reads from it.
func (b *boxed) hello(t *testing.T) error {
	t.Helper()
	c := remote.NewServer(b.o)
	defer func() { _ = c.Close() }()
	stream, err := c.SandboxChannel(t.Context(), boxID)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	text, err := io.ReadAll(stream)
	if err != nil || string(text) != "hello" {
		t.Fatalf("%q %v", text, err)
	}
	return nil
}

// TestStatementIsKept: a second channel needs no call, and whatever ends the first one's statement
// makes the client ask for a new one.
func TestStatementIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, b *boxed)
		asked  int // by the second channel
	}{
		"nothing": {func(*testing.T, *boxed) {}, 0},
		"the sandbox was paused or copied: its key is another": {func(_ *testing.T, b *boxed) {
			b.change(func(b *box) { b.key, b.known = channel.NewKeyPair(), &channel.Statements{} })
		}, 1},
		"the agent has withdrawn it": {func(_ *testing.T, b *boxed) {
			b.change(func(b *box) { b.known = &channel.Statements{} })
		}, 1},
		"it has expired": {func(t *testing.T, b *boxed) {
			k := b.notes[boxID]
			s, err := attest.Sign(t.Context(), &attest.Statement{Sandbox: boxID,
				ServerKey: b.key.Public, Clients: []channel.PublicKey{b.o.Key.Public},
				Nonce: k.Nonce, Time: time.Now().Add(-time.Hour),
				Expires: time.Now().Add(-time.Minute)}, b.signer)
			if err != nil {
				t.Fatal(err)
			}
			k.Envelope = s.Envelope
			b.notes[boxID] = k
		}, 1},
		"its nonce is none of this client": {func(_ *testing.T, b *boxed) {
			k := b.notes[boxID]
			k.Nonce[0]++
			b.notes[boxID] = k
		}, 1},
		"the client has another key": {func(_ *testing.T, b *boxed) {
			b.o.Key = channel.NewKeyPair()
		}, 1},
		"the file is damaged": {func(_ *testing.T, b *boxed) {
			b.notes[boxID] = remote.KeptStatement{Envelope: []byte("{"), Path: "http://elsewhere/"}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			if err := b.hello(t); err != nil || b.asked != 1 || len(b.notes) != 1 {
				t.Fatalf("%d calls, %d kept: %v", b.asked, len(b.notes), err)
			}
			tt.change(t, b)
			for n := range 2 { // what is kept now works again
				if err := b.hello(t); err != nil || b.asked != 1+tt.asked {
					t.Fatalf("%d: %d calls, not %d: %v", n, b.asked, 1+tt.asked, err)
				}
			}
		})
	}
}

// TestKeptStatementIsNotBelieved: pins that changed count for a kept statement, and an end that does
// not have the attested key is no reason to ask for another statement.
func TestKeptStatementIsNotBelieved(t *testing.T) {
	b := newBox(t)
	if err := b.hello(t); err != nil {
		t.Fatal(err)
	}
	b.change(func(b *box) { b.key = channel.NewKeyPair() }) // who knows the statement's digest
	if err := b.hello(t); turnstone.KindOf(err) != turnstone.KindIntegrity || b.asked != 1 {
		t.Errorf("another key: %d calls: %v", b.asked, err)
	}
	b.trust.Revoke(b.signer.ID())
	err := b.hello(t)
	if channel.FaultOf(err) != channel.FaultUntrusted || b.asked != 2 || len(b.notes) != 0 {
		t.Errorf("a revoked key: %d calls, %d kept: %v", b.asked, len(b.notes), err)
	}
}

// TestKeptCertificate: a kept statement counts with the certificate that the node showed with it, as
// the pins see it now.
func TestKeptCertificate(t *testing.T) {
	b := newBox(t)
	b.certificate = []byte("one")
	trusted := "one"
	b.o.Pins = func(_ context.Context, _ string, c []byte) (attest.Pins, error) {
		if string(c) != trusted {
			return &key.Trust{}, nil
		}
		return b.trust, nil
	}
	for range 2 {
		if err := b.hello(t); err != nil || b.asked != 1 {
			t.Fatalf("%d calls: %v", b.asked, err)
		}
	}
	trusted = "two" // such as of a later epoch
	if err := b.hello(t); channel.FaultOf(err) != channel.FaultUntrusted || b.asked != 2 {
		t.Errorf("%d calls: %v", b.asked, err)
	}
	b.certificate = []byte("two")
	for range 2 {
		if err := b.hello(t); err != nil || b.asked != 3 {
			t.Fatalf("%d calls: %v", b.asked, err)
		}
	}
}

// TestGreetingIsOneConnection: the connection that shows that a port speaks plain HTTP carries the
// channel too, and one that nobody uses is closed.
func TestGreetingIsOneConnection(t *testing.T) {
	b := newBox(t)
	if err := b.hello(t); err != nil {
		t.Fatal(err)
	}
	before := b.connections.Load()
	if err := b.hello(t); err != nil || b.connections.Load() != before+1 {
		t.Errorf("a channel under a kept statement took %d connections: %v",
			b.connections.Load()-before, err)
	}
}
