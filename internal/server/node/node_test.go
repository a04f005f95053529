package node_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/server/relay"
	"turnstone.dev/turnstone/internal/websocket"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

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

// secret is in the document, the settings, the output and the receipt of the test's turn.
const secret = "marker-that-only-the-ends-may-see"

// echo is an executor whose output is what it was given.
type echo struct{}

func (echo) Run(_ context.Context, r executor.Request, o executor.Observer) (
	*turnstone.TurnReport, error) {
	step := r.Document.Steps[0]
	o.StepStarted(step)
	o.StepOutput(step, turnstone.Stdout, []byte(step.Script+r.Secrets[0]))
	o.StepFinished(step, turnstone.StepReport{Status: turnstone.StepPassed})
	return &turnstone.TurnReport{Result: turnstone.ResultPassed, Receipt: secret}, nil
}

func (e echo) Times(ctx context.Context, r executor.Request, _ int, o executor.Observer) (
	*turnstone.TurnReport, error) {
	return e.Run(ctx, r, o)
}

// agents are sandboxes whose agents answer "hello" in their channels.
type agents struct {
	key   channel.KeyPair
	known channel.Statements
	seals atomic.Int32 // calls of Seal
	wg    sync.WaitGroup
}

func (a *agents) Seal(_ context.Context, id turnstone.SandboxID, s sandboxes.Seal) (
	sandboxes.ChannelKey, error) {
	a.seals.Add(1)
	if id != "sb_1" {
		return sandboxes.ChannelKey{}, turnstone.Errorf("sandbox.seal", turnstone.KindNotFound,
			string(id), "does not exist")
	}
	if s.Statement == "" {
		return a.key.Public, nil
	}
	return a.key.Public, a.known.Add(s.Statement, []channel.PublicKey{s.Clients[0]}, s.Expires)
}

type half struct{ net.Conn }

func (half) CloseWrite() error { return nil }

func (a *agents) OpenChannel(ctx context.Context, id turnstone.SandboxID) (
	sandboxes.ChannelStream, error) {
	if id != "sb_1" {
		return nil, turnstone.Errorf("sandbox.open", turnstone.KindNotFound, string(id), "is gone")
	}
	near, far := net.Pipe()
	a.wg.Go(func() {
		c, err := channel.Server(ctx, far, channel.ServerConfig{Key: a.key, Registry: &a.known})
		if err == nil {
			_, _ = c.Write([]byte("hello " + secret))
			_ = c.Close()
		}
	})
	return half{near}, nil
}

// tap notes all bytes that pass through a gateway.
type tap struct {
	mu  sync.Mutex
	all bytes.Buffer
}

type tapped struct {
	net.Conn
	t *tap
}

func (c tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.t.note(p[:n])
	return n, err
}

func (c tapped) Write(p []byte) (int, error) { c.t.note(p); return c.Conn.Write(p) }

func (t *tap) note(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.Write(p)
}

// scene is a node, a gateway before it, and a client.
type scene struct {
	*node.Node
	turns   *turns.Service
	gateway string // address
	seen    tap    // what passed through the gateway
	client  channel.KeyPair
	trust   key.Trust
	attest  func(context.Context, channel.PublicKey, attest.Nonce) ([]byte, error)
}

func newScene(t *testing.T, nodeKey *key.Signer) *scene {
	t.Helper()
	s := &scene{client: channel.NewKeyPair()}
	var err error
	if s.turns, err = turns.Open(t.TempDir(), echo{}, 2); err != nil {
		t.Fatal(err)
	}
	a := &agents{key: channel.NewKeyPair()}
	s.Node = node.New(node.Options{Name: "n1", Key: nodeKey, Sandboxes: a,
		Commands: func(_ context.Context, d *wire.Dispatcher, p node.Peer) error {
			wire.RegisterTurn(d, s.turns.For(p.Key,
				func(ctx context.Context) context.Context { return ctx }))
			return nil
		}})
	behind := httptest.NewServer(s.Handler())
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		u := &relay.Upgrade{Host: "node", Target: r.URL.Path,
			Dial: func(ctx context.Context) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "tcp",
					behind.Listener.Addr().String())
				return tapped{c, &s.seen}, err
			}}
		_, _ = u.Forward(w, r)
	}))
	relay.Limit(front.Config)
	front.Start()
	s.gateway = "ws://" + front.Listener.Addr().String()
	t.Cleanup(func() {
		_ = s.Close()
		front.Close()
		behind.Close()
		_ = s.turns.Close()
		a.wg.Wait()
	})
	s.trust.Add(key.Entry{Key: nodeKey.Public, Role: key.Node})
	s.attest = func(ctx context.Context, k channel.PublicKey, nonce attest.Nonce) ([]byte, error) {
		signed, err := s.Attest(ctx, node.Client{Key: k, Nonce: nonce})
		if err != nil {
			return nil, err
		}
		return signed.Envelope, nil
	}
	return s
}

// host returns the client's view of the node.
func (s *scene) host() *remote.Host {
	return &remote.Host{About: "node:n1", Pins: &s.trust, Key: s.client, Attest: s.attest,
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			return websocket.Dialer{}.Dial(ctx, s.gateway+node.ChannelPath, nil)
		}}
}

// TestTurn runs a turn through a gateway, which sees no byte of it.
func TestTurn(t *testing.T) {
	s := newScene(t, signer(t, 1))
	if err := s.turns.Reserve(turns.Ticket{ID: "k_00000001", Client: s.client.Public,
		Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	doc, err := document.Parse(secret+".md", []byte("```bash\necho "+secret+"\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := remote.TurnRequest{Ticket: "k_00000001", Document: doc}
	r.Settings.Secrets, r.Settings.Env = []string{"A=" + secret}, []string{"B=" + secret}
	var out output
	report, err := (&remote.Turns{Dial: s.host().Open}).Run(t.Context(), r, &out)
	if err != nil || report.Receipt != secret || strings.Count(out.String(), secret) != 2 {
		t.Fatalf("%+v %v %q", report, err, &out)
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	if s.seen.all.Len() < 500 || bytes.Contains(s.seen.all.Bytes(), []byte("marker")) ||
		bytes.Contains(s.seen.all.Bytes(), []byte("Turn.start")) {
		t.Fatalf("the gateway saw %d bytes, and what the turn says", s.seen.all.Len())
	}
}

type output struct{ strings.Builder }

func (o *output) Preparing(string)                                          {}
func (o *output) StepStarted(*document.Step)                                {}
func (o *output) StepOutput(_ *document.Step, _ turnstone.Stream, p []byte) { o.Write(p) }
func (o *output) StepFinished(*document.Step, turnstone.StepReport)         {}

// TestSandboxChannel opens the channel of a sandbox, which only its agent can read.
func TestSandboxChannel(t *testing.T) {
	s := newScene(t, signer(t, 1))
	h := s.host()
	h.About = "sb_1"
	h.Attest = func(ctx context.Context, k channel.PublicKey, nonce attest.Nonce) ([]byte, error) {
		signed, err := s.AttestSandbox(ctx, "sb_1", node.Client{Key: k, Nonce: nonce})
		if err != nil {
			return nil, err
		}
		return signed.Envelope, nil
	}
	h.Dial = func(ctx context.Context) (io.ReadWriteCloser, error) {
		return websocket.Dialer{}.Dial(ctx,
			s.gateway+strings.Replace(node.SandboxChannelPath, "{id}", "sb_1", 1), nil)
	}
	c, err := h.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(c); err != nil || string(all) != "hello "+secret {
		t.Fatalf("%q %v", all, err)
	}
	_ = c.Close()
	if _, err := s.AttestSandbox(t.Context(), "sb_2",
		node.Client{Key: s.client.Public}); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Fatal(err)
	}
	// the statement of one end opens no other: the gateway spliced them
	h.Dial = s.host().Dial
	if _, err := h.Open(t.Context()); err == nil {
		t.Fatal("the node's own channel took the sandbox's statement")
	}
}

// TestHostileGateway names what a gateway does.
func TestHostileGateway(t *testing.T) {
	own := newScene(t, signer(t, 2)) // the gateway's own node
	var kept []byte
	for name, c := range map[string]struct {
		fault  channel.Fault
		change func(s *scene, h *remote.Host)
	}{
		"another node": {channel.FaultUntrusted, func(_ *scene, h *remote.Host) {
			h.Attest = own.attest
		}},
		"an old statement": {channel.FaultReplayed, func(s *scene, h *remote.Host) {
			var err error
			if kept, err = s.attest(t.Context(), s.client.Public, attest.Nonce{1}); err != nil {
				t.Fatal(err)
			}
			h.Attest = func(context.Context, channel.PublicKey, attest.Nonce) ([]byte, error) {
				return kept, nil
			}
		}},
		"a changed statement": {channel.FaultForged, func(s *scene, h *remote.Host) {
			h.Attest = func(ctx context.Context, k channel.PublicKey, n attest.Nonce) ([]byte,
				error) {
				e, err := s.attest(ctx, k, n)
				e[len(e)/2] ^= 1
				return e, err
			}
		}},
		"another name": {channel.FaultSpliced, func(_ *scene, h *remote.Host) {
			h.About = "node:n2"
		}},
		"its own end": {"", func(_ *scene, h *remote.Host) { h.Dial = own.host().Dial }},
		"another client's statement": {"", func(s *scene, h *remote.Host) {
			h.Attest = func(ctx context.Context, _ channel.PublicKey, n attest.Nonce) ([]byte,
				error) {
				return s.attest(ctx, channel.NewKeyPair().Public, n)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, signer(t, 1))
			h := s.host()
			c.change(s, h)
			conn, err := h.Open(t.Context())
			if err == nil {
				_ = conn.Close()
				t.Fatal("the channel is open")
			}
			if c.fault != "" && channel.FaultOf(err) != c.fault {
				t.Fatalf("%s: %v", channel.FaultOf(err), err)
			}
		})
	}
}

// TestManyChannels answers those beyond the limit at once.
func TestManyChannels(t *testing.T) {
	n := node.New(node.Options{Name: "n1", Key: signer(t, 1), Channels: 1})
	s := httptest.NewServer(n.Handler())
	defer s.Close()
	defer func() { _ = n.Close() }()
	at := "ws" + strings.TrimPrefix(s.URL, "http") + node.ChannelPath
	first, err := websocket.Dialer{}.Dial(t.Context(), at, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = (websocket.Dialer{}).Dial(t.Context(), at,
		nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Fatal(err)
	}
	// random bytes end the first, which makes place
	if _, err := first.Write(bytes.Repeat([]byte("x"), 200)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(first); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) &&
		!strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
	_ = first.Close()
	for {
		c, err := websocket.Dialer{}.Dial(t.Context(), at, nil)
		if err == nil {
			_ = c.Close()
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSandboxKeyIsRemembered: an agent is asked for its key once, and a statement names the key that
// the agent has when it admits the client.
func TestSandboxKeyIsRemembered(t *testing.T) {
	a := &agents{key: channel.NewKeyPair()}
	n := node.New(node.Options{Name: "n1", Key: signer(t, 1), Sandboxes: a})
	defer func() { _ = n.Close() }()
	client := node.Client{Key: channel.NewKeyPair().Public, Nonce: attest.Nonce{1}}
	attests := func(seals int32) {
		t.Helper()
		before := a.seals.Load()
		s, err := n.AttestSandbox(t.Context(), "sb_1", client)
		if err != nil {
			t.Fatal(err)
		}
		if s.ServerKey != a.key.Public || a.seals.Load()-before != seals {
			t.Errorf("the key %s, after %d questions", s.ServerKey, a.seals.Load()-before)
		}
		if _, err := a.known.Clients(s.Digest); err != nil {
			t.Error(err)
		}
	}
	attests(2)
	attests(1)
	a.key = channel.NewKeyPair() // as after a pause
	attests(2)
	attests(1)
}

// TestClosedNode: a node that was closed opens no channel, and does not begin to wait for one.
func TestClosedNode(t *testing.T) {
	n := node.New(node.Options{})
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, node.ChannelPath, nil)
	w := httptest.NewRecorder()
	n.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
