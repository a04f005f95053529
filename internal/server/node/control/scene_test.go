package control_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/control"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// Names of this test as a holder: of agents in the holder's process, and of machines.
const (
	agentHolder   = "control-test-agents"
	machineHolder = "control-test-machines"
)

func TestMain(m *testing.M) {
	if os.Args[0] == agentHolder || os.Args[0] == machineHolder {
		os.Exit(hold())
	}
	os.Exit(m.Run())
}

// hold is a holder.
func hold() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	open := sandboxes.Opener(openAgent)
	if os.Args[0] == machineHolder {
		x, err := executor.Open(ctx, executor.Options{Dir: os.Args[2],
			Runsc: os.Getenv("TURN_RUNSC")})
		if err != nil {
			return 1
		}
		open = x.OpenMachine
	}
	err := sandboxes.NewStore(os.Args[2]).Hold(ctx, turnstone.SandboxID(os.Args[3]), open, os.Stdin,
		os.NewFile(3, "reports"), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return 1
	}
	return 0
}

// A machine is an agent in the holder's process. It can be paused, and its snapshots are empty.
type machine struct {
	link *wire.Link
	once sync.Once
	done chan struct{}
	end  func()
	shut net.Listener
}

func openAgent(ctx context.Context, _ turnstone.SandboxID, spec sandboxes.Spec, _ func(string)) (
	sandboxes.Machine, sandboxes.Details, error) {
	d := sandboxes.Details{Substrate: "fake", Isolation: "none",
		Template: turnstone.DigestBytes(nil), Workdir: spec.Cwd}
	switch spec.Image {
	case "broken":
		return nil, d, turnstone.Errorf("test", turnstone.KindUnavailable, "the machine",
			"out of steam")
	case "slow":
		<-ctx.Done()
		return nil, d, context.Cause(ctx)
	}
	if spec.From != "" {
		if _, err := os.ReadFile(filepath.Join(spec.From, "memory")); err != nil {
			return nil, d, err
		}
	}
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		return nil, d, err
	}
	a, err := agent.New(agent.Options{RunDir: filepath.Join(dir, "run"), Cwd: dir, Env: spec.Env})
	if err != nil {
		return nil, d, err
	}
	echo, err := net.Listen("tcp", "127.0.0.1:0") // a server in the sandbox
	if err != nil {
		return nil, d, err
	}
	go serveEcho(echo)
	near, far := net.Pipe()
	go func() { _ = a.Serve(context.Background(), far) }()
	link, err := wire.NewLink(near, true)
	return &machine{link: link, done: make(chan struct{}), shut: echo, end: func() {
		_, _, _ = link.Close(), a.Close(), echo.Close()
		_ = os.RemoveAll(dir)
	}}, d, err
}

func serveEcho(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

func (m *machine) Connect() (wire.LinkStream, error) { return m.link.Open() }
func (m *machine) Done() <-chan struct{}             { return m.done }
func (m *machine) Err() error                        { return nil }

func (m *machine) Close() error {
	m.once.Do(func() { m.end(); close(m.done) })
	return nil
}

func (m *machine) Pause(context.Context) (string, error) { return "", nil }
func (m *machine) Resume(context.Context) error          { return nil }
func (m *machine) Disk() (*os.File, error)               { return nil, errors.New("it has none") }

func (m *machine) Keep(context.Context, string) (substrate.Packed, error) {
	return substrate.Packed{}, errors.New("it cannot be kept")
}

func (m *machine) Snapshot(_ context.Context, dir string) error {
	return errors.Join(os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "memory"), []byte("dump"), 0o600))
}

func (m *machine) TakeNetwork(context.Context) (turnstone.NetworkFacts, bool) {
	return turnstone.NetworkFacts{}, true
}

// DialGuest reaches the one server in the sandbox, at port 80.
func (m *machine) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	if port != 80 {
		return nil, turnstone.Errorf("test", turnstone.KindUnavailable, "port", "nobody listens")
	}
	return new(net.Dialer).DialContext(ctx, "tcp", m.shut.Addr().String())
}

// A scene is a node with its control service, and a client of it.
type scene struct {
	turnstonev1connect.NodeServiceClient
	dir     string
	o       control.Options
	holder  string
	options executor.Options

	// bare is a controller that passes on what it likes.
	bare turnstonev1connect.NodeServiceClient

	set     *tenants.Set
	node    *node.Node
	service *control.Service
	server  *httptest.Server
}

func newScene(t *testing.T, change func(*control.Options)) *scene {
	t.Helper()
	s := &scene{dir: t.TempDir(), holder: agentHolder,
		o: control.Options{Version: "1", Expose: "127.0.0.1", Capacity: turnstone.Machine{CPUs: 16,
			Memory: 16 << 30, Disk: 1 << 40}}}
	if change != nil {
		change(&s.o)
	}
	s.start(t)
	t.Cleanup(func() { s.clean(t) })
	return s
}

// start starts the node's process.
func (s *scene) start(t *testing.T) {
	t.Helper()
	dir, err := statedir.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := key.Ring{Dir: dir}.NodeKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x := s.options
	x.Dir = s.dir
	x.Holder = sandboxes.Holder{Path: "/proc/self/exe", Args: []string{s.holder}}
	if s.set, err = tenants.Open(t.Context(), tenants.Options{Executor: x}); err != nil {
		t.Fatal(err)
	}
	s.node = node.New(node.Options{Name: "n1", Key: signer, Sandboxes: s.set,
		Commands: s.set.Commands})
	o := s.o
	o.Node, o.Tenants = s.node, s.set
	if s.service, err = control.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	_, h := s.service.Handler(func(_ context.Context, procedure string, err error) {
		t.Errorf("%s: %v", procedure, err)
	})
	s.server = httptest.NewUnstartedServer(h)
	s.server.EnableHTTP2 = true
	s.server.StartTLS()
	s.bare = turnstonev1connect.NewNodeServiceClient(s.server.Client(), s.server.URL,
		api.ClientOptions()...)
	s.NodeServiceClient = turnstonev1connect.NewNodeServiceClient(s.server.Client(), s.server.URL,
		append(api.ClientOptions(), connect.WithInterceptors(s.prover(t)))...)
}

// stop ends the node's process. Sandboxes continue.
func (s *scene) stop(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.service.Close(), s.node.Close(), s.set.Close()); err != nil {
		t.Error(err)
	}
	s.server.CloseClientConnections()
	s.server.Close()
}

func (s *scene) clean(t *testing.T) {
	for _, st := range s.set.All() {
		all, err := st.Sandboxes.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, i := range all {
			if err := st.Sandboxes.Remove(context.Background(), i.ID); err != nil {
				t.Error(err)
			}
		}
	}
	s.stop(t)
}

// A person is a caller with a client key.
type person struct {
	*v1.Principal
	pair channel.KeyPair
}

func of(tenant string) person {
	p := person{&v1.Principal{Issuer: "i", Tenant: tenant, Subject: "x", TokenId: "t",
		Scopes: message.Texts(auth.AllScopes()), Sessions: []string{"*"}, Templates: []string{"*"}},
		channel.NewKeyPair()}
	keys.Store(p.Principal, p.pair)
	keys.Store(p.pair.Public, p.pair)
	return p
}

// client returns a ChannelClient of p, with a fresh nonce.
func (p person) client() *v1.ChannelClient {
	nonce := make([]byte, 32)
	_, _ = rand.Read(nonce)
	return &v1.ChannelClient{ClientPublicKey: bytes.Clone(p.pair.Public[:]), Nonce: nonce}
}

func sandboxID() string  { return string(turnstone.NewSandboxID()) }
func ticketID() string   { return "tk_" + strings.TrimPrefix(sandboxID(), "sb_") }
func snapshotID() string { return "sn_" + strings.TrimPrefix(sandboxID(), "sb_") }
func sessionID() string  { return string(turnstone.NewSessionID()) }

// create asks for a sandbox.
func (s *scene) create(t *testing.T, p person, id string,
	change func(*v1.CreateSandboxRequest)) (*v1.CreateSandboxResponse, error) {
	t.Helper()
	q := &v1.CreateSandboxRequest{Client: p.client(),
		Source:  &v1.CreateSandboxRequest_Template{Template: "fine"},
		Machine: &v1.Machine{Cpus: 1, Memory: 1 << 30, Disk: 1 << 30}}
	if change != nil {
		change(q)
	}
	r, err := s.CreateSandbox(t.Context(), connect.NewRequest(&v1.NodeServiceCreateSandboxRequest{
		Principal: p.Principal, Request: q, SandboxId: id}))
	if err != nil {
		return nil, api.FromConnect(err)
	}
	return r.Msg, nil
}

func (s *scene) made(t *testing.T, p person, change func(*v1.CreateSandboxRequest)) *v1.Sandbox {
	t.Helper()
	r, err := s.create(t, p, sandboxID(), change)
	if err != nil {
		t.Fatal(err)
	}
	return r.Sandbox
}

// call calls a method of the service, and returns the message and its error's kind.
func call[Q, A any](t *testing.T, f func(context.Context, *connect.Request[Q]) (
	*connect.Response[A], error), q *Q) (*A, error) {
	t.Helper()
	r, err := f(t.Context(), connect.NewRequest(q))
	if err != nil {
		return nil, api.FromConnect(err)
	}
	return r.Msg, nil
}

func want(t *testing.T, what string, err error, kind turnstone.Kind) {
	t.Helper()
	if kind == "" && err != nil || kind != "" && turnstone.KindOf(err) != kind {
		t.Errorf("%s: %v (%s), want %s", what, err, turnstone.KindOf(err), kind)
	}
}

// owner returns a key that signs grants.
func owner(t *testing.T) *key.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eventually waits until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}
