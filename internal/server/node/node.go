// Package node is the part of a server that runs turns and sandboxes: it signs statements about the
// keys of its channels, and ends the channels of clients.
package node

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/hostpath"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/rights"
	"turnstone.dev/turnstone/internal/server/principal"
	"turnstone.dev/turnstone/internal/server/trail"
	"turnstone.dev/turnstone/internal/websocket"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// A Sandboxes opens and attests the channels of sandboxes: see sandboxes.Store.
type Sandboxes interface {
	Seal(ctx context.Context, id turnstone.SandboxID, seal sandboxes.Seal) (
		sandboxes.ChannelKey, error)
	OpenChannel(ctx context.Context, id turnstone.SandboxID) (sandboxes.ChannelStream, error)
}

// A Peer is the client of a channel of the node itself.
type Peer struct {
	Key channel.PublicKey // the channel has proved it
	// Tenant is whose state the commands of the channel use: the tenant that the statement was made
	// for.
	Tenant string
	// Operator is set if the statement was made for the operator of this machine.
	Operator bool
	// Rights are what the principals grant that the statement was made for, and that opened the
	// connection, as controller and gateway say. They are two: a statement may change hands.
	Rights rights.Rights
	// Owner is "TYPE BASE64" of the key that may admit others to what the client makes; it may be
	// empty.
	Owner string
}

// Options are the parts of a Node.
type Options struct {
	Name string      // of the node, in its statements
	Key  *key.Signer // signs statements
	// Certificate returns that of Key by the operator's root; nil: there is none.
	Certificate func() []byte
	// Commands registers what a client may do in a channel of the node itself, which ends with ctx. An error closes
	// the channel.
	Commands  func(ctx context.Context, d *wire.Dispatcher, p Peer) error
	Sandboxes Sandboxes
	// Paths hides the node's paths in errors of commands; nil: they stay.
	Paths *hostpath.Hider
	// Channels is the number of channels that may be open at the same time; a tenant may have as many
	// as are free. Default: 2,000.
	Channels int
	Watch    Watch // nil: nobody is told
}

// A Watch is told of handshakes. It is safe for concurrent use.
type Watch interface {
	// Handshook is told when a handshake began, and its error. ctx has the trail of the channel.
	Handshook(ctx context.Context, began time.Time, err error)
}

// Times of statements and handshakes, and the default number of channels.
const (
	validity       = time.Hour
	clockSkew      = time.Minute // by which a client's clock may be behind
	defaultChannel = 2000
	maxStatements  = 100_000 // of 200 bytes
	maxKeys        = 10_000
	sealTries      = 3
)

// Paths of channels.
const (
	ChannelPath        = "/turnstone/v1/nodes/{node}/channel"
	SandboxChannelPath = "/turnstone/v1/sandboxes/{id}/channel"
)

// A Node is safe for concurrent use.
type Node struct {
	o      Options
	pair   channel.KeyPair // of the node's own channels, for the life of the process
	known  statements
	proofs proofs // of clients, that were used
	keys   sandboxKeys
	places *places

	ctx  context.Context // of all channels
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // of channels; none begins after closed
}

// New returns a node. Close it.
func New(o Options) *Node {
	if o.Channels == 0 {
		o.Channels = defaultChannel
	}
	n := &Node{o: o, pair: channel.NewKeyPair(), places: newPlaces(o.Channels)}
	n.known.init()
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// Close ends all channels, and waits for them. Turns continue: see turns.Service.
func (n *Node) Close() error {
	n.stop()
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.wg.Wait()
	return nil
}

// begin counts a channel, unless the node is closed.
func (n *Node) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.wg.Add(1)
	}
	return !n.closed
}

// Name returns the node's name.
func (n *Node) Name() string { return n.o.Name }

// ChannelKey returns the key to which clients of this process prove theirs.
func (n *Node) ChannelKey() channel.PublicKey { return n.pair.Public }

// Paths returns what hides the node's paths; nil: nothing.
func (n *Node) Paths() *hostpath.Hider { return n.o.Paths }

// PublicKey returns the key that signs the node's statements.
func (n *Node) PublicKey() key.Public { return n.o.Key.Public }

// Certificate returns what the node shows to clients that trust the operator's root, or nil.
func (n *Node) Certificate() []byte {
	if n.o.Certificate == nil {
		return nil
	}
	return n.o.Certificate()
}

// Open returns the number of channels that are open.
func (n *Node) Open() int { return n.places.open() }

// A Client is who asks for a statement.
type Client struct {
	Key   channel.PublicKey
	Nonce attest.Nonce
	Owner string // the key that may admit others; may be empty
	// Until is when the client's right ends, and its statement at the latest; zero: no such time.
	Until time.Time
	// Tenant, Operator and Principal are what the Peer of a channel of the node will have.
	Tenant    string
	Operator  bool
	Principal *v1.Principal
}

// Attest returns a signed statement about the node's own channel, which admits the client for an
// hour.
func (n *Node) Attest(ctx context.Context, c Client) (*attest.Signed, error) {
	s, err := n.sign(ctx, c, attest.Statement{Node: n.o.Name, ServerKey: n.pair.Public})
	if err != nil {
		return nil, err
	}
	return s, n.known.admit(s, c)
}

// AttestSandbox returns a signed statement about the channel of a sandbox, whose agent then admits
// the client. The agent is asked once if its key is that of the last statement.
func (n *Node) AttestSandbox(ctx context.Context, id turnstone.SandboxID, c Client) (
	*attest.Signed, error) {
	own, known := n.keys.get(id)
	if !known {
		var err error
		if own, err = n.o.Sandboxes.Seal(ctx, id, sandboxes.Seal{}); err != nil {
			return nil, err
		}
	}
	for range sealTries {
		s, seal, err := n.SignSandbox(ctx, id, own, c)
		if err != nil {
			return nil, err
		}
		now, err := n.o.Sandboxes.Seal(ctx, id, seal)
		if err != nil {
			return nil, err
		}
		n.keys.set(id, now)
		if now == own {
			return s, nil
		}
		own = now // it was paused or copied since the last statement
	}
	return nil, turnstone.Errorf("sandbox.attest", turnstone.KindUnavailable, "sandbox "+string(id),
		"has another key again and again").WithHint("try again")
}

// SignSandbox is AttestSandbox for a sandbox whose key is known, and whose agent is given the seal by
// another way. Sealed follows.
func (n *Node) SignSandbox(ctx context.Context, id turnstone.SandboxID, own sandboxes.ChannelKey,
	c Client) (*attest.Signed, sandboxes.Seal, error) {
	s, err := n.sign(ctx, c, attest.Statement{Sandbox: id, ServerKey: own})
	if err != nil {
		return nil, sandboxes.Seal{}, err
	}
	return s, sandboxes.Seal{Statement: s.Digest, Clients: []sandboxes.ChannelKey{c.Key},
		Expires: s.Expires}, nil
}

// Sealed notes the key of a sandbox whose agent was given a seal.
func (n *Node) Sealed(id turnstone.SandboxID, own sandboxes.ChannelKey) { n.keys.set(id, own) }

// Withdraw makes the agent of a sandbox forget the statements that admit a client, which may have
// kept them for later connections.
func (n *Node) Withdraw(ctx context.Context, id turnstone.SandboxID, c channel.PublicKey) error {
	_, err := n.o.Sandboxes.Seal(ctx, id, sandboxes.Seal{Withdrawn: (*sandboxes.ChannelKey)(&c)})
	return err
}

func (n *Node) sign(ctx context.Context, c Client, s attest.Statement) (*attest.Signed, error) {
	if err := c.Key.Check(); err != nil {
		return nil, err
	}
	now := time.Now()
	s.Clients, s.Nonce, s.Owner = []channel.PublicKey{c.Key}, c.Nonce, c.Owner
	if s.Node != "" {
		s.Tenant = c.Tenant
	}
	s.Time, s.Expires = now.Add(-clockSkew), now.Add(validity)
	if !c.Until.IsZero() && c.Until.Before(s.Expires) {
		s.Expires = c.Until
	}
	return attest.Sign(ctx, &s, n.o.Key)
}

// Handler serves the channels, for gateways: it knows no tokens. A channel that a client opens shows
// its right by its key.
func (n *Node) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ChannelPath, func(w http.ResponseWriter, r *http.Request) {
		opened := principal.From(r.Header)
		from := trail.Extract(context.Background(), r.Header)
		n.accept(w, r, func(s *websocket.Stream) { n.serve(from, s, opened) })
	})
	mux.HandleFunc("GET "+SandboxChannelPath, func(w http.ResponseWriter, r *http.Request) {
		id := turnstone.SandboxID(r.PathValue("id"))
		from := trail.Extract(context.Background(), r.Header)
		n.accept(w, r, func(s *websocket.Stream) { n.pass(from, s, id) })
	})
	return mux
}

// accept upgrades a request, and passes the stream to f, which closes it.
func (n *Node) accept(w http.ResponseWriter, r *http.Request, f func(*websocket.Stream)) {
	// who opens the channel is the gateway's word
	opened := principal.From(r.Header)
	who := opened.Tenant
	if opened.Issuer == "" {
		who = "" // the operator, whom tokens of no tenant keep out
	}
	leave, ok := n.places.take(who)
	if !ok {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "the node or the tenant has reached its limit of channels",
			http.StatusServiceUnavailable)
		return
	}
	defer leave()
	if !n.begin() {
		http.Error(w, "the node ends", http.StatusServiceUnavailable)
		return
	}
	defer n.wg.Done()
	s, err := websocket.Accept(w, r)
	if err != nil {
		return // the client has its answer
	}
	f(s)
}

// serve ends a channel of the node itself, which a principal opened: the client drives its executor.
// from has the trail of the request.
func (n *Node) serve(from context.Context, s *websocket.Stream, opened auth.Principal) {
	began := time.Now()
	c, err := channel.Server(n.ctx, s, channel.ServerConfig{Key: n.pair, Registry: &n.known})
	if n.o.Watch != nil {
		n.o.Watch.Handshook(from, began, err)
	}
	if err != nil {
		logFault(from, "a channel was refused", err)
		return // Server has closed the stream
	}
	p, ok := n.known.peer(c.Statement())
	d := wire.NewDispatcher()
	if p.Key = c.Peer(); !ok { // it has expired since the handshake
		_ = c.Close()
		return
	}
	p.Rights = p.Rights.And(opened)
	ctx, ended := context.WithCancel(n.ctx)
	defer ended()
	if err := n.o.Commands(ctx, d, p); err != nil {
		slog.WarnContext(from, "a channel has no commands", "tenant", p.Tenant, "err", err)
		_ = c.Close()
		return
	}
	conn := wire.NewConn(c, wire.Options{Dispatcher: d, Errors: n.o.Paths.Error})
	defer context.AfterFunc(n.ctx, func() { _ = conn.Close() })()
	if e := p.Rights.Expires(); !e.IsZero() {
		defer time.AfterFunc(time.Until(e), func() { _ = conn.Close() }).Stop()
	}
	conn.Wait()
	logFault(from, "a channel ended", conn.Err())
	_ = conn.Close()
}

// logFault names what was done to a channel, if something was. An end of the connection is no fault
// of anybody.
func logFault(ctx context.Context, what string, err error) {
	level, fault := slog.LevelWarn, channel.FaultOf(err)
	if fault == "" || fault == channel.FaultTruncated {
		level = slog.LevelDebug
	}
	slog.Log(ctx, level, what, "fault", fault)
}

// pass copies the bytes of a channel to the agent of a sandbox, which ends it. from has the trail of
// the request.
func (n *Node) pass(from context.Context, s *websocket.Stream, id turnstone.SandboxID) {
	defer func() { _ = s.Close() }()
	agent, err := n.o.Sandboxes.OpenChannel(n.ctx, id)
	if err != nil {
		slog.DebugContext(from, "a sandbox has no channel", "sandbox", id, "kind", turnstone.KindOf(err))
		return
	}
	defer func() { _ = agent.Close() }()
	defer context.AfterFunc(n.ctx, func() { s.Abort(); _ = agent.Close() })()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(agent, s)
		_ = agent.CloseWrite()
	}()
	// a read takes a frame of the channel, which is one message then
	_, _ = io.CopyBuffer(s, struct{ io.Reader }{agent}, make([]byte, wire.MaxBinary))
	_ = s.Close() // ends the other copy
	<-done
}
