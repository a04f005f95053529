package remote

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/websocket"
	"turnstone.dev/turnstone/wire"

	"connectrpc.com/connect"
)

// Times of connections.
const (
	connectTime   = 10 * time.Second
	handshakeTime = 30 * time.Second
	idleTime      = 90 * time.Second
	pingTime      = 30 * time.Second
)

// A Token returns the token of the caller, or "" for none. It is asked for each call.
type Token func() (string, error)

// Pins returns who may sign statements about the node with this name, or, without a name, about a
// sandbox of any node. The certificate is what the node shows: it is untrusted, and may be empty.
type Pins func(ctx context.Context, node string, certificate []byte) (attest.Pins, error)

// ServerOptions say how to reach a server, and whom to trust behind it.
type ServerOptions struct {
	Address Address
	Token   Token // nil: none
	Pins    Pins
	// Avoid returns the nodes that what is made avoids; nil: none.
	Avoid func(ctx context.Context) []string
	// Own, in place of Pins and Token, is for a socket of this user: each connection checks that the
	// other end is a process of this user or of root, and every node behind it is trusted.
	Own bool
	// Start starts the server of an own socket at which nobody listens, and returns when it answers;
	// nil: nobody does.
	Start func(ctx context.Context) error
	Key   channel.KeyPair // of this client
	// Seal returns the key that seals this client's sessions, of 32 bytes, which the caller erases;
	// nil: there is none. It is sent to nodes only, in channels that end there.
	Seal func() ([]byte, error)
	// Book remembers the keys of nodes; nil: this Server alone.
	Book NodeBook
	// Statements keeps statements about sandboxes; nil: each channel asks for one.
	Statements StatementBook
	// TLS is the configuration of https: addresses; nil: the system's authorities.
	TLS *tls.Config
	// Dial connects in place of Address, to a server in this process; nil: Address is dialled.
	Dial func(ctx context.Context) (net.Conn, error)
}

// A Server is a client's view of a server: its services, and the channels behind it. The server is
// not trusted with content. Its methods are safe for concurrent use.
type Server struct {
	Sandboxes connectv1.SandboxServiceClient
	Turns     connectv1.TurnServiceClient
	Sessions  connectv1.SessionServiceClient
	Templates connectv1.TemplateServiceClient
	Server    connectv1.ServerServiceClient
	Pools     connectv1.PoolServiceClient

	o         ServerOptions
	connect   func(ctx context.Context, network, addr string) (net.Conn, error)
	transport *http.Transport
	greeted   atomic.Bool // the port speaks plain HTTP, as its address says
	waiting   waiting     // a connection that was greeted

	known sync.Mutex
	asked bool      // the book
	all   []NodeKey // nodes that the client proves its key to
}

// anyNode trusts every key: the connection has shown whose the server is.
type anyNode struct{}

// Vouch implements attest.Pins.
func (anyNode) Vouch(k key.Public, role key.Role, _ time.Time) (key.Entry, error) {
	return key.Entry{Key: k, Role: role}, nil
}

// Distrusts returns why the statements of a node are not believed, which the server describes, and "" if
// they are. The error is about this client's own files.
func (s *Server) Distrusts(ctx context.Context, n *v1.Node) (why string, err error) {
	k, err := key.Parse(n.GetKey())
	if err != nil {
		return "it has no key", nil
	}
	pins, err := s.o.Pins(ctx, n.GetName(), n.GetCertificate())
	if err != nil {
		return "", err
	}
	if _, err := pins.Vouch(k, key.Node, time.Now()); err != nil {
		return err.Error(), nil
	}
	return "", nil
}

// NewServer returns a server. It connects when it is used. Close it.
func NewServer(o ServerOptions) *Server {
	s := &Server{o: o, connect: o.Address.dial}
	if o.Dial != nil {
		s.connect = func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) }
	}
	if o.Own {
		s.connect, s.o.Token = o.Address.dialOwn, nil
		if o.Start != nil {
			s.connect = s.dialStarted
		}
		s.o.Pins = func(context.Context, string, []byte) (attest.Pins, error) { return anyNode{}, nil }
	}
	s.transport = &http.Transport{DialContext: s.dialNext, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: connectTime, IdleConnTimeout: idleTime, TLSClientConfig: s.tls(),
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingTime, PingTimeout: pingTime}}
	client := &http.Client{Transport: answers{s.transport, answerTime, bodyTime},
		CheckRedirect: s.redirected}
	options := append(api.ClientOptions(), connect.WithInterceptors(&caller{server: s,
		pause: retryPause}))
	base := o.Address.control()
	s.Sandboxes = connectv1.NewSandboxServiceClient(client, base, options...)
	s.Turns = connectv1.NewTurnServiceClient(client, base, options...)
	s.Sessions = connectv1.NewSessionServiceClient(client, base, options...)
	s.Templates = connectv1.NewTemplateServiceClient(client, base, options...)
	s.Server = connectv1.NewServerServiceClient(client, base, options...)
	s.Pools = connectv1.NewPoolServiceClient(client, base, options...)
	return s
}

// Close closes idle connections. Channels that are open stay.
func (s *Server) Close() error {
	s.transport.CloseIdleConnections()
	s.waiting.close()
	return nil
}

// dialNext connects to the server, or returns the connection that was greeted.
func (s *Server) dialNext(ctx context.Context, network, addr string) (net.Conn, error) {
	if c := s.waiting.take(); c != nil {
		return c, nil
	}
	return s.connect(ctx, network, addr)
}

// dialStarted is dialOwn for a server that is started when nobody listens.
func (s *Server) dialStarted(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := s.o.Address.dialOwn(ctx, network, addr)
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if err := s.o.Start(ctx); err != nil {
		return nil, err
	}
	return s.o.Address.dialOwn(ctx, network, addr)
}

// Address returns the server's address.
func (s *Server) Address() Address { return s.o.Address }

// Key returns the public key of this client.
func (s *Server) Key() channel.PublicKey { return s.o.Key.Public }

func (s *Server) tls() *tls.Config {
	if s.o.TLS == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return s.o.TLS.Clone()
}

// redirected refuses to follow a redirection, because the token would follow too.
func (s *Server) redirected(to *http.Request, _ []*http.Request) error {
	return turnstone.Errorf("host.call", turnstone.KindInvalid, s.o.Address.String(),
		"redirects to %.100s", to.URL.Scheme+"://"+to.URL.Host).
		WithHint("use that address with turn host add if you trust it")
}

// maxToken bounds a token in bytes, as servers do.
const maxToken = 16 << 10

// authorization returns the header of a call, or "". It is asked before anything is sent.
func (s *Server) authorization(ctx context.Context) (string, error) {
	if err := s.greet(ctx); err != nil {
		return "", err
	}
	if s.o.Token == nil {
		return "", nil
	}
	token, err := s.o.Token()
	if err != nil || token == "" {
		return "", err
	}
	if len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool {
		return r <= ' ' || r > '~'
	}) {
		return "", turnstone.Errorf("host.token", turnstone.KindInvalid, "the token",
			"is too long, or has characters that no token has").
			WithHint("set TURN_TOKEN to what turn token create printed")
	}
	return "Bearer " + token, nil
}

// Secret returns a secret of this client's key for a purpose, which names itself. It is the same as long
// as the key is, and says nothing about the key.
func (s *Server) Secret(purpose string) ([]byte, error) {
	private := s.o.Key.Private()
	defer clear(private)
	return hkdf.Key(sha256.New, private, nil, purpose, sha256.Size)
}

// asker returns the client's part of a new statement, and its nonce.
func (s *Server) asker() (*v1.ChannelClient, attest.Nonce) {
	var nonce attest.Nonce
	_, _ = rand.Read(nonce[:]) // documented never to fail
	return &v1.ChannelClient{ClientPublicKey: s.o.Key.Public[:], Nonce: nonce[:]}, nonce
}

// An offer is what a server answers about a channel. It is not believed before open has checked it.
type offer struct {
	channel *v1.Channel
	node    string // whose statement it has to be; empty: any pinned node's
	about   string // the statement's subject
	nonce   attest.Nonce
	owner   string // the key that the client named as owner; may be empty
}

// nodeOffer returns the offer of a channel to a node.
func nodeOffer(c *v1.Channel, node string, nonce attest.Nonce) offer {
	return offer{channel: c, node: node, about: "node:" + node, nonce: nonce}
}

// open checks an offer and opens its channel.
func (s *Server) open(ctx context.Context, o offer) (io.ReadWriteCloser, error) {
	signed, err := s.believe(ctx, o)
	if err != nil {
		return nil, s.distrusted(err)
	}
	return s.enter(ctx, signed, o.channel.GetPath())
}

// believe returns the statement of an offer, if it is the one that the client asked for.
func (s *Server) believe(ctx context.Context, o offer) (*attest.Signed, error) {
	pins, err := s.o.Pins(ctx, o.node, o.channel.GetCertificate())
	if err != nil {
		return nil, err
	}
	signed, err := verify(ctx, o.channel.GetAttestation(), attest.Expected{
		Pins: pins, About: o.about, Client: s.o.Key.Public, Nonce: o.nonce,
		Owner: o.owner})
	if err != nil {
		return nil, err
	}
	if signed.Node != "" && !s.o.Own {
		s.remember(NodeKey{signed.Node, signed.ServerKey, signed.Tenant})
	}
	return signed, nil
}

// enter opens the channel at a path, whose other end proves the key of a statement.
func (s *Server) enter(ctx context.Context, signed *attest.Signed, path string) (
	io.ReadWriteCloser, error) {
	stream, err := s.dial(ctx, path)
	if err != nil {
		return nil, err
	}
	c, err := channel.Client(ctx, stream, channel.ClientConfig{Key: s.o.Key,
		Server: signed.ServerKey, Statement: signed.Digest})
	if err != nil {
		return nil, s.distrusted(err)
	}
	return c, nil
}

// dial opens the WebSocket at a path that the server answered.
func (s *Server) dial(ctx context.Context, path string) (io.ReadWriteCloser, error) {
	to, err := s.o.Address.channel(path)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	auth, err := s.authorization(ctx)
	if err != nil {
		return nil, err
	}
	if auth != "" {
		header.Set("Authorization", auth)
	}
	config := s.tls()
	config.NextProtos = []string{"http/1.1"} // WebSockets over HTTP/2 are rare
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	d := websocket.Dialer{TLS: config, Net: s.dialNext}
	stream, err := d.Dial(ctx, to, header)
	if err != nil {
		return nil, s.unreached(err)
	}
	return stream, nil
}

// NodeChannel opens a channel to a node, for the wire's domains Turn, Session and Template. Without
// a name, the server selects the node.
func (s *Server) NodeChannel(ctx context.Context, node string) (io.ReadWriteCloser, error) {
	client, nonce := s.asker()
	a, err := s.Sessions.ConnectNode(ctx, connect.NewRequest(&v1.ConnectNodeRequest{Node: node,
		Client: client}))
	if err != nil {
		return nil, err
	}
	return s.open(ctx, nodeOffer(a.Msg.Channel, cmp.Or(node, a.Msg.Node), nonce))
}

// Unlock sends the node at the other end of c the key that seals this client's sessions, if the client
// has one: before the first command.
func (s *Server) Unlock(ctx context.Context, c *wire.Client) error {
	if s.o.Seal == nil {
		return nil
	}
	key, err := s.o.Seal()
	if err != nil {
		return err
	}
	defer clear(key)
	err = c.SessionUnlock(ctx, &wire.SessionUnlockParams{Key: key})
	if err == nil || turnstone.KindOf(err) == turnstone.KindDead || ctx.Err() != nil {
		return err
	}
	hint := turnstone.HintOf(err)
	return turnstone.NewError("host.unlock", turnstone.KindOf(err),
		"the node does not take the key that seals your sessions", err).WithHint(hint)
}

// SandboxChannel opens a channel to a sandbox, whose agent is at the other end. The statement about
// it may be one of an earlier channel.
func (s *Server) SandboxChannel(ctx context.Context, id turnstone.SandboxID) (
	io.ReadWriteCloser, error) {
	return s.OwnedSandboxChannel(ctx, id, "")
}

// OwnedSandboxChannel is SandboxChannel for a sandbox whose creator named an owner's key, as
// "TYPE BASE64".
func (s *Server) OwnedSandboxChannel(ctx context.Context, id turnstone.SandboxID, owner string) (
	io.ReadWriteCloser, error) {
	o := offer{about: string(id), owner: owner}
	if c, err := s.openKept(ctx, o); c != nil || err != nil {
		return c, err
	}
	var client *v1.ChannelClient
	client, o.nonce = s.asker()
	a, err := s.Sandboxes.ConnectSandbox(ctx, connect.NewRequest(&v1.ConnectSandboxRequest{
		SandboxId: string(id), Client: client}))
	if err != nil {
		return nil, err
	}
	o.channel = a.Msg.Channel
	c, err := s.open(ctx, o)
	if err == nil {
		s.keep(o)
	}
	return c, err
}
