package gateway

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/websocket"
	"turnstone.dev/turnstone/sandboxes"
)

// A nodeScene is a gateway, and a node whose sandbox echoes what comes through its channel.
type nodeScene struct {
	*scene
	node   *node.Node
	server *httptest.Server
	end    *echoes
	pair   channel.KeyPair
	trust  key.Trust
}

const sandbox = "sb_0123456789abcdefgh"

// echoes are the agents of sandboxes, which end their channels.
type echoes struct {
	key    channel.KeyPair
	known  channel.Statements
	wg     sync.WaitGroup
	faults chan channel.Fault // of handshakes
	opened atomic.Int64       // channels whose handshake succeeded
	broken chan error         // how channels ended
}

func (e *echoes) Seal(_ context.Context, _ turnstone.SandboxID, s sandboxes.Seal) (
	sandboxes.ChannelKey, error) {
	if s.Statement == "" {
		return e.key.Public, nil
	}
	return e.key.Public, e.known.Add(s.Statement, []channel.PublicKey{s.Clients[0]}, s.Expires)
}

// bothEnds returns two ends of a stream, each of which can end its own direction.
func bothEnds() (a, b *half) {
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	return &half{r: r1, w: w2}, &half{r: r2, w: w1}
}

type half struct {
	net.Conn // nil
	r        *io.PipeReader
	w        *io.PipeWriter
}

func (h *half) Read(p []byte) (int, error)  { return h.r.Read(p) }
func (h *half) Write(p []byte) (int, error) { return h.w.Write(p) }
func (h *half) CloseWrite() error           { return h.w.Close() }
func (h *half) Close() error                { return errors.Join(h.w.Close(), h.r.Close()) }

func (e *echoes) OpenChannel(ctx context.Context, _ turnstone.SandboxID) (
	sandboxes.ChannelStream, error) {
	near, far := bothEnds()
	e.wg.Go(func() {
		c, err := channel.Server(ctx, far, channel.ServerConfig{Key: e.key, Registry: &e.known})
		if err != nil {
			e.faults <- channel.FaultOf(err)
			return
		}
		e.opened.Add(1)
		_, err = io.Copy(c, c)
		_ = c.Close()
		e.broken <- err
	})
	return near, nil
}

func newNodeScene(t testing.TB, changes ...change) *nodeScene {
	t.Helper()
	private, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)))
	check(t, err)
	signer, err := key.NewSigner(private)
	check(t, err)
	n := &nodeScene{pair: channel.NewKeyPair(), end: &echoes{key: channel.NewKeyPair(),
		faults: make(chan channel.Fault, 100), broken: make(chan error, 10_000)}}
	n.node = node.New(node.Options{Name: "n1", Key: signer, Sandboxes: n.end, Channels: 20_000})
	n.server = httptest.NewServer(n.node.Handler())
	t.Cleanup(func() {
		_ = n.node.Close()
		n.server.Close()
		n.end.wg.Wait()
	})
	n.scene = newScene(t, changes...)
	t.Cleanup(n.scene.end)
	at := n.server.Listener.Addr().String()
	n.where.nodes["n1"], n.where.nodes[sandbox] = at, at
	n.trust.Add(key.Entry{Key: signer.Public, Role: key.Node})
	return n
}

func (n *nodeScene) path() string { return "/turnstone/v1/sandboxes/" + sandbox + "/channel" }

// raw opens the WebSocket of a channel.
func (n *nodeScene) raw(t testing.TB, token string) *websocket.Stream {
	t.Helper()
	s, err := n.dialer().Dial(t.Context(), n.socketURL(), bearerHeader(token))
	check(t, err)
	t.Cleanup(s.Abort)
	return s
}

func (n *nodeScene) dialer() websocket.Dialer { return websocket.Dialer{TLS: n.trusting()} }

func (n *nodeScene) socketURL() string { return strings.Replace(n.url(), "http", "ws", 1) + n.path() }

func bearerHeader(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

// host is a client of the sandbox.
func (n *nodeScene) host(token string) *remote.Host {
	return &remote.Host{About: sandbox, Pins: &n.trust, Key: n.pair,
		Attest: func(ctx context.Context, k channel.PublicKey, nonce attest.Nonce) ([]byte, error) {
			s, err := n.node.AttestSandbox(ctx, sandbox, node.Client{Key: k, Nonce: nonce})
			if err != nil {
				return nil, err
			}
			return s.Envelope, nil
		},
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			return n.dialer().Dial(ctx, n.socketURL(), bearerHeader(token))
		}}
}

// echo sends bytes through a channel, and compares what comes back.
func echo(t testing.TB, c io.ReadWriter, size int) {
	t.Helper()
	sent, got := noise(size, size), make([]byte, size)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- err
	}()
	_, err := io.ReadFull(c, got)
	check(t, err)
	check(t, <-failed)
	if !bytes.Equal(sent, got) {
		t.Fatal("other bytes came back")
	}
}

// channels opens a channel and uses it: the control client of the tests of hostile clients.
func (n *nodeScene) channels(t testing.TB) {
	t.Helper()
	c, err := n.host(n.token(t)).Open(t.Context())
	check(t, err)
	echo(t, c, 5000)
	check(t, c.Close())
	n.works(t)
}

// TestChannel carries a channel through the gateway, with and without TLS, and tells the controller
// whose it is.
func TestChannel(t *testing.T) {
	for name, changes := range map[string][]change{"plain": nil, "tls": {withTLS(t)}} {
		t.Run(name, func(t *testing.T) {
			n := newNodeScene(t, changes...)
			c, err := n.host(n.token(t)).Open(t.Context())
			check(t, err)
			echo(t, c, 1<<20)
			check(t, c.Close())
			if p := n.where.asked[0]; p.Tenant != "acme" || p.Subject != "ci" || p.TokenId == "" ||
				len(p.Scopes) == 0 || p.Expires == nil {
				t.Errorf("the controller was told %v", p)
			}
			n.scene.end()
			if len(n.network.all)+len(n.network.count)+len(n.calls.all)+len(n.calls.count) > 0 {
				t.Errorf("left: %v %v", n.network.all, n.calls.count)
			}
		})
	}
}

// TestRevokedChannel ends the channels of a revoked token, and no others.
func TestRevokedChannel(t *testing.T) {
	n := newNodeScene(t, limits(Limits{Recheck: time.Millisecond}))
	token := n.issue(t, n.claims())
	c, err := n.host(token.Token.Reveal()).Open(t.Context())
	check(t, err)
	other, err := n.host(n.token(t)).Open(t.Context())
	check(t, err)
	check(t, n.publisher.Revoke(t.Context(), auth.Revocation{Issuer: serverName, TokenID: token.ID,
		Until: token.Expires}))
	if _, err := io.ReadAll(c); err == nil { // and not before
		t.Error("the channel ended as if the node had ended it")
	}
	_ = c.Close()
	echo(t, other, 5000)
	check(t, other.Close())
	if a := n.upgrade(t, n.path(), token.Token.Reveal()); a.StatusCode != 401 {
		t.Error(a.StatusCode)
	}
}

// frames opens a WebSocket whose frames the test writes.
func (n *nodeScene) frames(t testing.TB) net.Conn {
	t.Helper()
	d := ws.Dialer{Header: ws.HandshakeHeaderHTTP(bearerHeader(n.token(t)))}
	c, _, _, err := d.Dial(t.Context(), n.socketURL())
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	check(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

// TestIdleChannel ends a silent channel, and one that pings continues.
func TestIdleChannel(t *testing.T) {
	const idle = 3 * time.Second
	n := newNodeScene(t, limits(Limits{Idle: idle}))
	silent, busy := n.raw(t, n.token(t)), n.frames(t)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = io.ReadAll(silent) // it ends
	}()
	pinged := time.Now()
	for ended := false; !ended; {
		select {
		case <-stop:
			ended = true
		case <-time.After(20 * time.Millisecond): //wait: the loop polls
		}
		before := pinged
		pinged = time.Now()
		err := ws.WriteFrame(busy, ws.MaskFrame(ws.NewPingFrame(nil)))
		var f ws.Frame
		if err == nil {
			f, err = ws.ReadFrame(busy)
		}
		if err != nil && time.Since(before) >= idle { // a busy machine let it be silent, too
			busy = n.frames(t)
		} else if err != nil || f.Header.OpCode != ws.OpPong {
			t.Fatal(f, err)
		}
	}
}

// TestNodeVanishes ends the channels of a node that dies while it relays, and refuses new ones with
// an error that says to try again.
func TestNodeVanishes(t *testing.T) {
	n := newNodeScene(t)
	c, err := n.host(n.token(t)).Open(t.Context())
	check(t, err)
	echo(t, c, 100)
	_ = n.server.Listener.Close()
	_ = n.node.Close() // cuts its connections
	if _, err := io.ReadAll(c); channel.FaultOf(err) != channel.FaultTruncated {
		t.Errorf("%s: %v", channel.FaultOf(err), err)
	}
	_ = c.Close()
	for _, a := range []*http.Response{n.upgrade(t, n.path(), n.token(t))} {
		b, _ := io.ReadAll(a.Body)
		if a.StatusCode != http.StatusBadGateway || !bytes.Contains(b, []byte("unavailable")) ||
			!bytes.Contains(b, []byte("try again")) {
			t.Errorf("%d %s", a.StatusCode, b)
		}
		if bytes.Contains(b, []byte(n.server.Listener.Addr().String())) {
			t.Errorf("the node's address is in %s", b)
		}
	}
	n.works(t)
}

// TestBackPressure: a client that does not read stops the node, and the gateway holds little.
func TestBackPressure(t *testing.T) {
	n := newNodeScene(t, limits(Limits{Stall: 300 * time.Millisecond}))
	var sent atomic.Int64
	ended := make(chan struct{})
	flood := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		s, err := websocket.Accept(w, r)
		if err != nil {
			return
		}
		defer s.Abort()
		for p := make([]byte, 64<<10); ; {
			k, err := s.Write(p)
			if sent.Add(int64(k)); err != nil {
				return
			}
		}
	}))
	defer flood.Close()
	n.where.nodes[sandbox] = flood.Listener.Addr().String()
	n.raw(t, n.token(t)) // and reads nothing
	<-ended              // the gateway gave up
	if sent.Load() > 64<<20 {
		t.Errorf("%d bytes were taken", sent.Load())
	}
	n.works(t)
}

// TestHostileChannels: what a client sends in a channel goes to the node's end, which refuses it by
// name, within bounds; other channels continue.
func TestHostileChannels(t *testing.T) {
	n := newNodeScene(t)
	lasting, err := n.host(n.token(t)).Open(t.Context())
	check(t, err)
	first := n.record(t)
	weak := bytes.Clone(first)
	copy(weak[4+32:], make([]byte, 32)) // the ephemeral key: a point of low order
	unknown := bytes.Clone(first)
	unknown[4] ^= 1
	for name, c := range map[string]struct {
		bytes []byte
		fault channel.Fault // "": any
	}{
		"random bytes":    {noise(1, 4096), ""},
		"random after id": {append([]byte("TSC1"), noise(2, 4096)...), ""},
		"weak point":      {weak, channel.FaultWeakKey},
		"unknown":         {unknown, ""},
		"replayed":        {first, channel.FaultTruncated}, // nothing follows
		"replayed, then":  {append(bytes.Clone(first), noise(3, 500)...), ""},
		"nothing":         {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := n.end.opened.Load()
			s := n.raw(t, n.token(t))
			_, err := s.Write(c.bytes)
			check(t, err)
			check(t, s.Close())
			if got := <-n.end.faults; c.fault != "" && got != c.fault {
				t.Errorf("the fault is %q, want %q", got, c.fault)
			}
			if n.end.opened.Load() != before {
				t.Error("a channel was opened")
			}
			echo(t, lasting, 5000)
			n.channels(t)
		})
	}
	check(t, lasting.Close())
}

// record returns the first message of a client's handshake.
func (n *nodeScene) record(t testing.TB) []byte {
	t.Helper()
	h := n.host(n.token(t))
	dial, noted := h.Dial, &tap{}
	h.Dial = func(ctx context.Context) (io.ReadWriteCloser, error) {
		s, err := dial(ctx)
		noted.ReadWriteCloser = s
		return noted, err
	}
	c, err := h.Open(t.Context())
	check(t, err)
	echo(t, c, 10)
	check(t, c.Close())
	return noted.b.Bytes()[:4+32+96]
}

// tap notes what is written.
type tap struct {
	io.ReadWriteCloser
	b bytes.Buffer
}

func (p *tap) Write(b []byte) (int, error) { p.b.Write(b); return p.ReadWriteCloser.Write(b) }

// TestHostileFragments sends WebSocket messages without an end: the node ends the channel within
// its bound, and others continue.
func TestHostileFragments(t *testing.T) {
	n := newNodeScene(t)
	for name, send := range map[string]func(net.Conn) error{
		"fragments": func(c net.Conn) error {
			op := ws.OpBinary
			for {
				err := ws.WriteFrame(c, ws.MaskFrame(ws.NewFrame(op, false, make([]byte, 1000))))
				if err != nil {
					return err
				}
				op = ws.OpContinuation
			}
		},
		"empty fragments": func(c net.Conn) error {
			op := ws.OpBinary
			for range 2_000_000 {
				if err := ws.WriteFrame(c, ws.MaskFrame(ws.NewFrame(op, false, nil))); err != nil {
					return err
				}
				op = ws.OpContinuation
			}
			return nil
		},
		"a terabyte": func(c net.Conn) error {
			err := ws.WriteHeader(c, ws.Header{Fin: true, OpCode: ws.OpBinary, Masked: true,
				Length: 1 << 40})
			for err == nil {
				_, err = c.Write(make([]byte, 64<<10))
			}
			return err
		},
		"unmasked": func(c net.Conn) error {
			for {
				if err := ws.WriteFrame(c, ws.NewBinaryFrame(make([]byte, 100))); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := n.frames(t)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			if err := send(c); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the node took it all: %v", err)
			}
			n.channels(t)
		})
	}
}
