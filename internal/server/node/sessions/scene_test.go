package sessions

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/remote/atnode"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// A scene is a node's state with two sessions: research is the client's mine, private the
// operator's. Research has turns 1 and 2 on main, and 3 on side.
type scene struct {
	t        *testing.T
	dir      string
	x        *executor.Executor
	store    *owners.Store
	service  *Service
	research turnstone.Session
	turns    []turnstone.Turn
	private  turnstone.Session

	operator, mine, reader, writer, other owners.Caller
}

func caller() owners.Caller { return owners.Caller{Key: channel.NewKeyPair().Public} }

// past fills a state directory.
func past(t *testing.T, s *scene) {
	t.Helper()
	r := repotest.Open(&statedir.Dir{Root: s.dir})
	p := repotest.On(t, r).Sign()
	s.research, s.private = p.Session("research"), p.Session("private")
	first := treetest.File{Path: "/workspace/a", Data: "one\ntwo\nthree\n"}
	dir := treetest.File{Path: "/workspace/d/b", Data: "bytes"}
	s.turns = append(s.turns, p.Turn(s.research, "main", first, dir))
	second := treetest.File{Path: "/workspace/a", Data: "one\ntwo\nchanged\n"}
	s.turns = append(s.turns, p.Turn(s.research, "main", second, dir,
		treetest.File{Path: "/workspace/d/link", Target: "/etc/passwd"}))
	if _, err := p.CS.DB.Fork(t.Context(), s.turns[0], "side"); err != nil {
		t.Fatal(err)
	}
	s.turns = append(s.turns, p.Turn(s.research, "side",
		treetest.File{Path: "/workspace/a", Data: "changed\ntwo\nthree\n"}, dir))
	p.Turn(s.private, "main", treetest.File{Path: "/workspace/secret", Data: "secret"})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, dir: t.TempDir(), operator: owners.Caller{Operator: true}, mine: caller(),
		reader: caller(), writer: caller(), other: caller()}
	past(t, s)
	s.x = openExecutor(t, s.dir)
	store, err := owners.Open(filepath.Join(s.dir, "server", "owners"))
	if err != nil {
		t.Fatal(err)
	}
	s.store = store
	s.service = s.serve(s.x)
	if err := store.Claim(t.Context(), s.research.ID, s.mine); err != nil {
		t.Fatal(err)
	}
	for c, scope := range map[owners.Caller]attest.Scope{s.reader: attest.ScopeRead,
		s.writer: attest.ScopeWrite} {
		if err := store.Allow(t.Context(), s.research.ID, s.mine, c.Key, []attest.Scope{scope},
			time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func openExecutor(t *testing.T, dir string) *executor.Executor {
	t.Helper()
	const nowhere = "http://127.0.0.1:1" // no test builds a template
	x, err := executor.Open(t.Context(), executor.Options{Dir: dir, DebianMirror: nowhere,
		DebianSecurityMirror: nowhere, PipIndex: nowhere, NpmRegistry: nowhere})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func (s *scene) serve(x Executor) *Service {
	v := New(Options{Executor: x, Owners: s.store, Dir: filepath.Join(s.dir, "server", "received"),
		Templates: template.NewStore(filepath.Join(s.dir, "templates"))})
	v.ServeSandboxes(boxes{s})
	return v
}

// boxes has one sandbox, which belongs to the session research.
type boxes struct{ s *scene }

const box = "sb_000000000000000000"

// Of implements Sandboxes: all clients have the key of the sandbox.
func (b boxes) Of(id turnstone.SandboxID, _ owners.Caller) (turnstone.SessionID, error) {
	if id != box {
		return "", turnstone.Errorf("sandbox.find", turnstone.KindNotFound, "sandbox", "none")
	}
	return b.s.research.ID, nil
}

func (b boxes) Commit(context.Context, turnstone.SandboxID) (*turnstone.TurnReport, error) {
	return &turnstone.TurnReport{Session: "research", Number: 3}, nil
}

func (b boxes) Discard(context.Context, turnstone.SandboxID) error { return nil }

// connect returns the connection of a client.
func (s *scene) connect(service *Service, c owners.Caller) *wire.Client {
	d := wire.NewDispatcher()
	service.Register(d, c)
	near, far := net.Pipe()
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	client := wire.NewClient(near)
	s.t.Cleanup(func() { _ = client.Close(); _ = server.Close(); client.Wait(); server.Wait() })
	return client
}

// remote returns the executor of a client.
func (s *scene) remote(service *Service, c owners.Caller) *atnode.Executor {
	x := &atnode.Executor{Last: filepath.Join(s.t.TempDir(), "last"),
		Dial: func(context.Context) (*wire.Client, error) { return s.connect(service, c), nil }}
	s.t.Cleanup(func() { _ = x.Close() })
	return x
}
