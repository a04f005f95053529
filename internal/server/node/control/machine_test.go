package control_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/server/node/control"
	"turnstone.dev/turnstone/internal/server/principal"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/testhome"
	"turnstone.dev/turnstone/internal/websocket"
	"turnstone.dev/turnstone/wire"
)

// newMachines returns a scene whose sandboxes are machines, of a tenant without any data. The home is that
// of all tests of the user: nobody else has the tenant meanwhile.
func newMachines(t *testing.T, tenant string) *scene {
	t.Helper()
	home := testhome.Dir(t)
	lock, err := statedir.Acquire(t.Context(), filepath.Join(home, tenant+".lock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.Release) // after all that the scene does at its end
	dir := filepath.Join(home, "tenants", tenant)
	if err := os.RemoveAll(dir); err != nil { // of a test that was killed
		t.Fatal(err)
	}
	s := &scene{dir: home, holder: machineHolder, o: control.Options{Version: "1"}}
	s.options.Runsc = os.Getenv("TURN_RUNSC")
	s.start(t)
	t.Cleanup(func() {
		s.clean(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// host returns a client's view of one end of the node's channels.
func (s *scene) host(t *testing.T, p person, about string,
	state func(c *v1.ChannelClient) (*v1.Channel, error)) *remote.Host {
	t.Helper()
	ends := httptest.NewServer(s.node.Handler())
	t.Cleanup(ends.Close)
	var trust key.Trust
	k, err := key.Ring{Dir: &statedir.Dir{Root: s.dir}}.NodeKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	trust.Add(key.Entry{Key: k.Public, Role: key.Node})
	path := ""
	return &remote.Host{About: about, Pins: &trust, Key: p.pair,
		Attest: func(_ context.Context, k channel.PublicKey, nonce attest.Nonce) ([]byte, error) {
			c, err := state(&v1.ChannelClient{ClientPublicKey: k[:], Nonce: nonce[:]})
			path = c.GetPath()
			return c.GetAttestation(), err
		},
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			opened := http.Header{} // as a gateway says
			if err := principal.Set(opened, principal.Of(p.Principal)); err != nil {
				return nil, err
			}
			return websocket.Dialer{}.Dial(ctx, "ws"+strings.TrimPrefix(ends.URL, "http")+path, opened)
		}}
}

// run runs a script in a sandbox, through its channel.
func (s *scene) run(t *testing.T, p person, id, script string) string {
	t.Helper()
	h := s.host(t, p, id, func(c *v1.ChannelClient) (*v1.Channel, error) {
		r, err := call(t, s.ConnectSandbox, &v1.NodeServiceConnectSandboxRequest{
			Principal: p.Principal, Request: &v1.ConnectSandboxRequest{SandboxId: id, Client: c}})
		return r.GetChannel(), err
	})
	conn, err := h.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(conn)
	defer func() { _ = c.Close() }()
	var out bytes.Buffer
	in, err := c.StateGetSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), wire.ProcessStartParams{Argv: []string{"sh", "-c", script},
		Cwd: in.Cwd},
		wire.Stdio{Out: &out, Err: &out}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestMachineSandbox creates, pauses, clones and keeps a machine of a tenant that shares the node's
// template, and reaches each through its channel, also after a restart of the node.
func TestMachineSandbox(t *testing.T) {
	s, ada := newMachines(t, "machines-test"), of("machines-test")
	sb := s.made(t, ada, func(q *v1.CreateSandboxRequest) {
		q.Source = &v1.CreateSandboxRequest_Template{Template: "base"}
		q.Env, q.Cwd, q.Live = map[string]string{"WORD": "hello"}, "/var", true
	})
	if got := s.run(t, ada, sb.SandboxId, "echo $WORD; pwd; echo kept >/tmp/f"); got !=
		"hello\n/var\n" {
		t.Fatalf("%q", got)
	}
	eventually(t, "it is not ready again", func() bool {
		st, err := s.set.Of(t.Context(), ada.Tenant)
		if err != nil {
			t.Fatal(err)
		}
		i, err := st.Sandboxes.Get(turnstone.SandboxID(sb.SandboxId))
		return err == nil && i.State == "ready"
	})
	pause := &v1.NodeServicePauseSandboxRequest{Principal: ada.Principal,
		Request: &v1.PauseSandboxRequest{SandboxId: sb.SandboxId}}
	if r, err := call(t, s.PauseSandbox, pause); err != nil || !r.Sandbox.Paused ||
		r.Sandbox.Version != turnstone.Version {
		t.Fatalf("%v %v", r, err)
	}
	s.stop(t)
	s.start(t)
	if r, err := call(t, s.ResumeSandbox, &v1.NodeServiceResumeSandboxRequest{
		Principal: ada.Principal, Request: &v1.ResumeSandboxRequest{
			SandboxId: sb.SandboxId}}); err != nil || r.Sandbox.Paused {
		t.Fatalf("%v %v", r, err)
	}
	clone := sandboxID()
	if _, err := call(t, s.ForkSandbox, &v1.NodeServiceForkSandboxRequest{Principal: ada.Principal,
		SandboxIds: []string{clone}, Request: &v1.ForkSandboxRequest{SandboxId: sb.SandboxId,
			Clients: []*v1.ChannelClient{ada.client()}}}); err != nil {
		t.Fatal(err)
	}
	snap := snapshotID()
	if r, err := call(t, s.SnapshotSandbox, &v1.NodeServiceSnapshotSandboxRequest{
		Principal: ada.Principal, SnapshotId: snap, Request: &v1.SnapshotSandboxRequest{
			SandboxId: sb.SandboxId}}); err != nil || r.Snapshot.Size == 0 ||
		r.Snapshot.Version != turnstone.Version {
		t.Fatalf("%v %v", r, err)
	}
	if _, err := s.remove(t, ada, sb.SandboxId); err != nil {
		t.Fatal(err)
	}
	again := s.made(t, ada, func(q *v1.CreateSandboxRequest) {
		q.Source, q.Machine = &v1.CreateSandboxRequest_SnapshotId{SnapshotId: snap}, nil
	})
	for _, id := range []string{clone, again.SandboxId} {
		if got := s.run(t, ada, id, "cat /tmp/f; echo $WORD"); got != "kept\nhello\n" {
			t.Errorf("%s: %q", id, got)
		}
	}
	if _, err := call(t, s.DeleteSnapshot, &v1.NodeServiceDeleteSnapshotRequest{
		Principal: ada.Principal,
		Request:   &v1.DeleteSnapshotRequest{SnapshotId: snap}}); err != nil {
		t.Fatal(err)
	}
	bad := &v1.CreateSandboxRequest{Client: ada.client(), Cwd: "/not/there",
		Source: &v1.CreateSandboxRequest_Template{Template: "base"}}
	if _, err := call(t, s.CreateSandbox, &v1.NodeServiceCreateSandboxRequest{
		Principal: ada.Principal, Request: bad, SandboxId: sandboxID()}); err == nil {
		t.Error("a directory that does not exist")
	}
}

// TestMachineTurn runs a turn of a tenant by its ticket.
func TestMachineTurn(t *testing.T) {
	s, ada := newMachines(t, "turns-test"), of("turns-test")
	v := s.watch(t)
	v.until("the list", synced)
	ticket, path := ticketID(), ""
	h := s.host(t, ada, "node:n1", func(c *v1.ChannelClient) (*v1.Channel, error) {
		r, err := call(t, s.ConnectTurn, &v1.NodeServiceConnectTurnRequest{
			Principal: ada.Principal, Request: &v1.ConnectTurnRequest{TicketId: ticket, Client: c}})
		path = r.GetChannel().GetPath()
		return r.GetChannel(), err
	})
	if _, err := s.reserve(t, ada, ticket, func(q *v1.StartTurnRequest) {
		q.Session = "work"
	}); err != nil {
		t.Fatal(err)
	}
	doc, err := document.Parse("a.md", []byte("```bash\necho hello > /workspace/f\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := remote.TurnRequest{Ticket: ticket, Document: doc}
	r.Settings.Session = "work"
	report, err := (&remote.Turns{Dial: h.Open}).Run(t.Context(), r, nothing{})
	if err != nil || report.Result != turnstone.ResultPassed {
		t.Fatalf("%+v %v (%s)", report, err, path)
	}
	// the session comes first, because it is known when the turn has its ID
	v.until("its session", func(r *v1.WatchNodeResponse) bool {
		one := r.GetSession().GetSession()
		return one.GetName() == "work" && one.Turns == 1 && one.Running == 0
	})
	v.until("its end", func(r *v1.WatchNodeResponse) bool {
		turn := r.GetTurn().GetTurn()
		return turn.GetTicketId() == ticket && turn.State == v1.TurnState_TURN_STATE_DONE &&
			turn.SessionId != "" && turn.Number == 1 &&
			turn.Result == v1.TurnResult_TURN_RESULT_PASSED && turn.TurnId == string(report.ID)
	})
	// a sandbox that begins on the session has its files, for this client only
	on := func(q *v1.CreateSandboxRequest) { q.Source, q.ContextId = nil, "work" }
	sb := s.made(t, ada, on)
	if got := s.run(t, ada, sb.SandboxId, "cat /workspace/f"); got != "hello\n" {
		t.Fatalf("%q", got)
	}
	s.run(t, ada, sb.SandboxId, "echo more >> /workspace/f")
	if _, err := s.remove(t, ada, sb.SandboxId); err != nil {
		t.Fatal(err)
	}
	v.until("its turn", func(r *v1.WatchNodeResponse) bool {
		one := r.GetSession().GetSession()
		return one.GetName() == "work" && one.Turns == 2
	})
	_, err = s.create(t, of(ada.Tenant), sandboxID(), on)
	want(t, "another key", err, turnstone.KindDenied)
}

type nothing struct{}

func (nothing) Preparing(string)                                    {}
func (nothing) StepStarted(*document.Step)                          {}
func (nothing) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (nothing) StepFinished(*document.Step, turnstone.StepReport)   {}
