package turns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// player is an executor that tells of two outputs, and waits between them.
type player struct {
	runs  atomic.Int64
	first chan struct{} // closed after the first output
	go2   chan struct{} // the second output follows when it is closed
	req   executor.Request
	ctx   context.Context
}

func newPlayer() *player { return &player{first: make(chan struct{}), go2: make(chan struct{})} }

func (p *player) Run(ctx context.Context, r executor.Request, o executor.Observer) (
	*turnstone.TurnReport, error) {
	p.runs.Add(1)
	p.req, p.ctx = r, ctx
	step := r.Document.Steps[0]
	o.StepStarted(step)
	o.StepOutput(step, turnstone.Stdout, []byte("one"))
	close(p.first)
	select {
	case <-p.go2:
	case <-ctx.Done():
		return &turnstone.TurnReport{ID: "t_1", Result: turnstone.ResultError,
			Kind: turnstone.KindCanceled}, context.Cause(ctx)
	}
	o.StepOutput(step, turnstone.Stdout, []byte("two"))
	o.StepFinished(step, turnstone.StepReport{Status: turnstone.StepPassed})
	return &turnstone.TurnReport{ID: "t_1", Result: turnstone.ResultPassed,
		Receipt: string(r.Document.Source)}, nil
}

func (p *player) Times(ctx context.Context, r executor.Request, _ int, o executor.Observer) (
	*turnstone.TurnReport, error) {
	return p.Run(ctx, r, o)
}

// scene is a service with one ticket for one client.
type scene struct {
	*Service
	client channel.PublicKey
	ticket Ticket
	doc    *document.Document
}

func newScene(t *testing.T, dir string, x Executor) *scene {
	t.Helper()
	s, err := Open(dir, x, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	doc, err := document.Parse("a.md", []byte("```bash\necho a\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := &scene{Service: s, client: channel.NewKeyPair().Public, doc: doc}
	c.ticket = Ticket{ID: "k_12345678", Client: c.client, Expires: time.Now().Add(time.Hour)}
	if err := s.Reserve(c.ticket); err != nil {
		t.Fatal(err)
	}
	return c
}

// restart returns the service of another process.
func (c *scene) restart(t *testing.T, x Executor) *scene {
	t.Helper()
	s, err := Open(c.dir, x, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Recover(func(ticket Ticket, _ bool) Limit {
		return func(ctx context.Context) context.Context {
			return context.WithValue(ctx, limitKey{}, ticket.Client)
		}
	}); err != nil {
		t.Fatal(err)
	}
	again := *c
	again.Service = s
	return &again
}

// open is no limit: package owners has the tests of those.
func open(ctx context.Context) context.Context { return ctx }

type limitKey struct{}

// TestLimited runs a turn under its client's limit, also when the client has left.
func TestLimited(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	d := wire.NewDispatcher()
	wire.RegisterTurn(d, s.For(s.client, func(ctx context.Context) context.Context {
		return context.WithValue(ctx, limitKey{}, s.client)
	}))
	near, far := net.Pipe()
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	client := wire.NewClient(near)
	if err := start(client, source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	client.Wait()
	server.Wait()
	<-x.first
	close(x.go2)
	waitIdle(s.Service)
	if x.ctx.Value(limitKey{}) != s.client {
		t.Fatal("the turn has no limit")
	}
}

// connect returns the connection of a client with a key.
func (c *scene) connect(t *testing.T, key channel.PublicKey) *wire.Client {
	t.Helper()
	d := wire.NewDispatcher()
	wire.RegisterTurn(d, c.For(key, open))
	near, far := net.Pipe()
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	client := wire.NewClient(near)
	t.Cleanup(func() { _ = client.Close(); _ = server.Close(); client.Wait(); server.Wait() })
	return client
}

func start(c *wire.Client, source, ticket string, s *wire.TurnSettings) error {
	return c.Feed(strings.NewReader(source), func(id wire.StreamID) error {
		return c.TurnStart(context.Background(), &wire.TurnStartParams{Ticket: ticket,
			Name: "a.md", Document: id, Settings: s})
	})
}

// whole is more than a journal of this test has.
const whole = 1 << 20

// read reads the journal from r's offset on, at most n bytes of it.
func read(c *wire.Client, r *turnlog.Reader, ticket string, n int64) error {
	id := c.NewStream()
	in, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	answer := make(chan error, 1)
	go func() {
		_, err := c.TurnAttach(context.Background(), &wire.TurnAttachParams{Ticket: ticket,
			Offset: r.Offset(), Journal: id})
		if err != nil {
			_ = in.Close()
		}
		answer <- err
	}()
	err = r.Read(io.LimitReader(in, n))
	_ = in.Close()
	if n < whole {
		go func() { <-answer }() // it ends with the connection
		return err
	}
	if failed := <-answer; failed != nil {
		return failed
	}
	return err
}

type heard struct{ out strings.Builder }

func (h *heard) Preparing(string)           {}
func (h *heard) StepStarted(*document.Step) { h.out.WriteString("started ") }
func (h *heard) StepOutput(_ *document.Step, _ turnstone.Stream, p []byte) {
	h.out.Write(append(p, ' '))
}
func (h *heard) StepFinished(*document.Step, turnstone.StepReport) { h.out.WriteString("finished") }

// begin is the journal until the first output.
const begin = `{"started":1}` + "\n" + `{"output":{"step":1,"stream":1,"data":"b25l"}}` + "\n"

const source = "```bash\necho a\n```\n"

// TestRun starts a turn, loses its connection, attaches on another, and again after its end.
func TestRun(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	c := s.connect(t, s.client)
	if err := start(c, source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	<-x.first
	var h heard
	r := turnlog.NewReader(s.doc, &h)
	if err := read(c, r, s.ticket.ID, int64(len(begin))); err != nil || !strings.Contains(h.out.String(), "one") {
		t.Fatalf("%v %q", err, &h.out)
	}
	_ = c.Close()
	c = s.connect(t, s.client)
	close(x.go2)
	for range 2 { // the second time from the file
		if err := read(c, r, s.ticket.ID, whole); err != nil {
			t.Fatal(err)
		}
		report, err, ok := r.Result()
		if !ok || err != nil || report.Receipt != source ||
			h.out.String() != "started one two finished" {
			t.Fatalf("%+v %v %t %q", report, err, ok, &h.out)
		}
		h.out.Reset()
		r = turnlog.NewReader(s.doc, &h)
		waitIdle(s.Service)
	}
}

// waitIdle waits for the end of all turns, and for their readers.
func waitIdle(s *Service) {
	s.wg.Wait()
	for {
		s.mu.Lock()
		n := len(s.running)
		s.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestOnce uses a ticket many times at once: one turn runs.
func TestOnce(t *testing.T) {
	x := newPlayer()
	close(x.go2)
	s := newScene(t, t.TempDir(), x)
	var wg sync.WaitGroup
	var good atomic.Int64
	for range 2 {
		c := s.connect(t, s.client)
		wg.Go(func() {
			err := start(c, source, s.ticket.ID, nil)
			if err == nil {
				good.Add(1)
			} else if k := turnstone.KindOf(err); k != turnstone.KindInvalid {
				t.Errorf("%s: %v", k, err)
			}
		})
	}
	wg.Wait()
	waitIdle(s.Service)
	if good.Load() != 1 || x.runs.Load() != 1 {
		t.Fatalf("%d turns were started, %d ran", good.Load(), x.runs.Load())
	}
	// also after a restart
	again := s.restart(t, x)
	if err := start(again.connect(t, s.client), source, s.ticket.ID,
		nil); turnstone.KindOf(err) != turnstone.KindInvalid || x.runs.Load() != 1 {
		t.Fatal(err)
	}
}

// TestWhileStarted: who attaches to a turn that another connection starts at this moment waits for it,
// and another start, too.
func TestWhileStarted(t *testing.T) {
	x := newPlayer()
	close(x.go2)
	s := newScene(t, t.TempDir(), x)
	slow := s.connect(t, s.client)
	in, document := io.Pipe()
	started := make(chan error, 1)
	go func() {
		started <- slow.Feed(in, func(id wire.StreamID) error {
			return slow.TurnStart(context.Background(), &wire.TurnStartParams{Ticket: s.ticket.ID,
				Name: "a.md", Document: id})
		})
	}()
	done, err := s.starting(t.Context(), s.ticket.ID) // as the command does with the document
	if err != nil {
		t.Fatal(err)
	}
	attached, again := make(chan error, 1), make(chan error, 1)
	other := s.connect(t, s.client)
	go func() {
		attached <- read(other, turnlog.NewReader(s.doc, nil), s.ticket.ID, whole)
	}()
	impatient, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := s.starting(impatient, s.ticket.ID)
		again <- err
	}()
	cancel()
	if err := <-again; !errors.Is(err, context.Canceled) {
		t.Fatalf("a start beside another: %v", err)
	}
	select {
	case err := <-attached:
		t.Fatalf("attached while the turn was being started: %v", err)
	case <-time.After(20 * time.Millisecond): //wait: longer only makes the check stricter
	}
	// the command goes on, before or after who waits for it
	if _, err := io.WriteString(document, source); err != nil {
		t.Fatal(err)
	}
	_ = document.Close()
	done()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if err := <-attached; err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Fatal(err)
	}
	waitIdle(s.Service)
	if x.runs.Load() != 1 {
		t.Fatalf("%d turns ran", x.runs.Load())
	}
}

// TestOthers lets nobody but the ticket's client use it, and tells others nothing.
func TestOthers(t *testing.T) {
	s := newScene(t, t.TempDir(), newPlayer())
	other := s.connect(t, channel.NewKeyPair().Public)
	texts := map[string]string{}
	for _, ticket := range []string{s.ticket.ID, "k_00000000"} {
		r := turnlog.NewReader(s.doc, nil)
		for name, err := range map[string]error{"start": start(other, source, ticket, nil),
			"attach": read(other, r, ticket, whole),
			"cancel": other.TurnCancel(context.Background(),
				&wire.TurnCancelParams{Ticket: ticket})} {
			if turnstone.KindOf(err) != turnstone.KindNotFound {
				t.Fatalf("%s: %v", name, err)
			}
			text := strings.ReplaceAll(err.Error(), ticket, "TICKET")
			if was := texts[name]; was != "" && was != text {
				t.Fatalf("%s: %q and %q", name, was, text)
			}
			texts[name] = text
		}
	}
	for _, id := range []string{"", "../k_12345678", "k_1234/../x", "K_12345678"} {
		if err := start(other, source, id, nil); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestTickets(t *testing.T) {
	s := newScene(t, t.TempDir(), newPlayer())
	if err := s.Reserve(s.ticket); err != nil {
		t.Fatalf("again: %v", err)
	}
	changed := s.ticket
	changed.Session = "other"
	if err := s.Reserve(changed); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatalf("changed: %v", err)
	}
	c := s.connect(t, s.client)
	if err := start(c, source, s.ticket.ID,
		&wire.TurnSettings{Session: "other"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatalf("another session: %v", err)
	}
	s.now = func() time.Time { return s.ticket.Expires }
	err := start(c, source, s.ticket.ID, nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), "expired") {
		t.Fatalf("expired: %v", err)
	}
	err = read(c, turnlog.NewReader(s.doc, nil), s.ticket.ID, whole)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Fatalf("attach before the start: %v", err)
	}
}

// TestCancel ends a turn, by its client and by the node's end.
func TestCancel(t *testing.T) {
	for name, end := range map[string]func(s *scene, c *wire.Client) error{
		"cancel": func(s *scene, c *wire.Client) error {
			return c.TurnCancel(context.Background(), &wire.TurnCancelParams{Ticket: s.ticket.ID})
		},
		"close": func(s *scene, _ *wire.Client) error { return s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			x := newPlayer()
			s := newScene(t, t.TempDir(), x)
			c := s.connect(t, s.client)
			if err := start(c, source, s.ticket.ID, nil); err != nil {
				t.Fatal(err)
			}
			<-x.first
			if err := end(s, c); err != nil {
				t.Fatal(err)
			}
			r := turnlog.NewReader(s.doc, nil)
			if err := read(c, r, s.ticket.ID, whole); err != nil {
				t.Fatal(err)
			}
			report, err, ok := r.Result()
			if !ok || err == nil || report.Kind != turnstone.KindCanceled {
				t.Fatalf("%+v %v %t", report, err, ok)
			}
		})
	}
}

// TestRestart ends journals that a killed node left, wherever it was killed.
func TestRestart(t *testing.T) {
	line := `{"started":1}` + "\n"
	for name, text := range map[string]string{"no journal": "-", "empty": "", "a line": line,
		"half a line": line + `{"output":{"st`, "a broken line": line + "\x00\x00\n"} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, t.TempDir(), newPlayer())
			dir := filepath.Join(s.dir, s.ticket.ID)
			if err := s.begin(s.ticket, dir, begun{}); err != nil {
				t.Fatal(err)
			}
			if text != "-" {
				if err := os.WriteFile(filepath.Join(dir, journalFile), []byte(text),
					0o600); err != nil {
					t.Fatal(err)
				}
			}
			again := s.restart(t, newPlayer())
			r := turnlog.NewReader(s.doc, nil)
			if err := read(again.connect(t, s.client), r, s.ticket.ID, whole); err != nil {
				t.Fatal(err)
			}
			report, err, ok := r.Result()
			if !ok || report != nil || turnstone.KindOf(err) != turnstone.KindDead {
				t.Fatalf("%+v %v %t", report, err, ok)
			}
			if strings.HasPrefix(text, line) && r.Offset() < int64(len(line)) {
				t.Fatal("the lines before are gone")
			}
		})
	}
}

// TestRequest holds the rule that a remote caller grants nothing, except its own homes: what a flag
// grants becomes a request of the document.
func TestRequest(t *testing.T) {
	no := false
	s := &wire.TurnSettings{Image: "registry.example.org/a:1", Env: []string{"A=b"}, Timeout: 5e9,
		CPUs: 2, Memory: 1 << 30, Disk: 1 << 31, Network: &no,
		Rules:         &wire.TurnNetworkRules{Allow: []string{"127.0.0.1:22"}},
		SecretHeaders: []string{"a=b: c"}, Secrets: []string{"T=x"}, Commands: true, Session: "s",
		Branch: "b", Lifetime: "session", Home: "h", Snapshot: "vm", Deterministic: &no,
		Tier: "seeded", Seed: "18446744073709551615", Clock: "2026-01-01T00:00:00Z", Times: 2,
		Add: []wire.TurnTransfer{{Name: "0", Dest: "a"}}, FilesSent: true, Checkpoint: "step",
		Resume: "t_06h0roc6jvt83o48kg", Isolation: "microvm", Guest: "bookworm-amd64"}
	for i := range reflect.TypeOf(*s).NumField() {
		if reflect.ValueOf(*s).Field(i).IsZero() {
			t.Errorf("%s is not in this test", reflect.TypeOf(*s).Field(i).Name)
		}
	}
	doc, err := document.Parse("a.md", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	req, times, err := request(doc, Ticket{Session: "s", Template: s.Image}, s)
	if err != nil || times != 2 {
		t.Fatal(times, err)
	}
	if req.Image != "" || req.Network != nil || req.NetworkRules != nil || req.Lifetime != "" ||
		req.Home != "h" || req.Snapshot != "" || len(req.Grant)+len(req.Add)+len(req.Get) > 0 ||
		req.Substrate != "" || !req.Piped {
		t.Errorf("the request grants: %+v", req)
	}
	x, err := executor.Planner(executor.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	asks, err := x.Asks(req.Document, req.Piped)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, a := range asks {
		keys = append(keys, a.Key)
	}
	for _, key := range []string{"lifetime", "snapshot", "network"} {
		if !strings.Contains(strings.Join(keys, " "), key) {
			t.Errorf("%s is granted: %v", key, asks)
		}
	}
	// A session may be named by its ID, as it is in a ticket that was reserved by its name, and by no other.
	id := *s
	id.Session = "s_06h0roc6jvt83o48kg"
	for of, want := range map[Ticket]bool{{Session: "s", SessionID: "s_06h0roc6jvt83o48kg"}: true,
		{Session: "s", SessionID: "s_06h0roc6jvt83o48k0"}: false, {Session: "s"}: false, {}: false} {
		of.Template = s.Image
		if r, _, err := request(doc, of, &id); (err == nil) != want || err == nil && r.Session != id.Session {
			t.Errorf("%+v: %v, %v", of, r.Session, err)
		}
	}
	if *req.Seed != 1<<64-1 || req.Clock.Year() != 2026 || doc.Front.Home != "" {
		t.Errorf("%+v", req)
	}
}

// TestResumption: a resumed turn has the session of its ticket, and no setting of its own that the
// turn began with.
func TestResumption(t *testing.T) {
	const id = "t_06h0roc6jvt83o48kg"
	good := wire.TurnSettings{Session: "s", Resume: id, Secrets: []string{"A=b"},
		SecretHeaders: []string{"a=b: c"}, Commands: true}
	req, err := resumption(Ticket{Session: "s", SessionID: "s_1"}, &good)
	if err != nil || req.Ref != id || req.Session != "s_1" || !req.Remote || len(req.Grant) > 0 ||
		req.Network != nil || req.NetworkRules != nil {
		t.Errorf("%+v, %v", req, err)
	}
	bounds := Ticket{Session: "s", Timeout: time.Hour, Machine: turnstone.Machine{CPUs: 2},
		Most: turnstone.Machine{CPUs: 1, Memory: 1 << 30, Disk: 1 << 30}}
	if req, err = resumption(bounds, &good); err != nil || req.MostTime != time.Hour ||
		req.Most != (turnstone.Machine{CPUs: 2, Memory: 1 << 30, Disk: 1 << 30}) {
		t.Errorf("within the ticket: %+v, %v", req, err)
	}
	no := false
	for name, change := range map[string]func(s *wire.TurnSettings){
		"another session": func(s *wire.TurnSettings) { s.Session = "other" },
		"a reference":     func(s *wire.TurnSettings) { s.Resume = "other@1" },
		"a part of an ID": func(s *wire.TurnSettings) { s.Resume = id[:10] },
		"image":           func(s *wire.TurnSettings) { s.Image = "python" },
		"environment":     func(s *wire.TurnSettings) { s.Env = []string{"A=b"} },
		"network":         func(s *wire.TurnSettings) { s.Network = &no },
		"rules":           func(s *wire.TurnSettings) { s.Rules = new(wire.TurnNetworkRules) },
		"times":           func(s *wire.TurnSettings) { s.Times = 2 },
		"home":            func(s *wire.TurnSettings) { s.Home = "h" },
	} {
		bad := good
		change(&bad)
		if _, err := resumption(Ticket{Session: "s", SessionID: "s_1"}, &bad); turnstone.KindOf(
			err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := resumption(Ticket{}, &wire.TurnSettings{Resume: id}); err == nil {
		t.Error("a ticket without a session resumes a turn")
	}
}

func TestBadRequests(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		s      wire.TurnSettings
	}{
		"files":   {"---\nfiles: [/etc/shadow]\n---\n" + source, wire.TurnSettings{}},
		"session": {"---\nsession: s\n---\n" + source, wire.TurnSettings{}},
		"seed":    {source, wire.TurnSettings{Seed: "-1"}},
		"clock":   {source, wire.TurnSettings{Clock: "yesterday"}},
		"times":   {source, wire.TurnSettings{Times: 101}},
		"image":   {"---\nimage: python\n---\n" + source, wire.TurnSettings{}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newPlayer()
			s := newScene(t, t.TempDir(), x)
			err := start(s.connect(t, s.client), c.source, s.ticket.ID, &c.s)
			if turnstone.KindOf(err) != turnstone.KindInvalid || x.runs.Load() != 0 {
				t.Fatal(err)
			}
			// nothing was started, so the ticket is still good
			close(x.go2)
			if err := start(s.connect(t, s.client), source, s.ticket.ID, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSweep removes tickets a day after the last use of theirs, and none before.
func TestSweep(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x) // its ticket runs
	if err := start(s.connect(t, s.client), source, s.ticket.ID, nil); err != nil {
		t.Fatal(err)
	}
	<-x.first
	unused := Ticket{ID: "k_00000002", Client: s.client, Expires: time.Now().Add(48 * time.Hour)}
	if err := s.Reserve(unused); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after           time.Duration
		running, unused bool
	}{{26 * time.Hour, true, true}, {73 * time.Hour, true, false}} {
		s.now = func() time.Time { return time.Now().Add(c.after) }
		if err := s.sweep(); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]bool{s.ticket.ID: c.running, unused.ID: c.unused} {
			if _, _, err := s.load(id); (err == nil) != want {
				t.Errorf("after %s: %s: %v", c.after, id, err)
			}
		}
	}
	close(x.go2)
	waitIdle(s.Service)
	s.now = func() time.Time { return time.Now().Add(75 * time.Hour) }
	if err := s.sweep(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
}

// TestHostileNames takes no file from outside of the stream.
func TestHostileNames(t *testing.T) {
	dir := t.TempDir()
	for link, to := range map[string]string{"0/link": "/etc/passwd", "etc": "/etc"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "0"), 0o700),
			os.Symlink(to, filepath.Join(dir, link))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "/etc/passwd", "0", "0/", "0/..", "0/link",
		"etc/passwd", "0/missing", "0/a\x00b", "0/a/b", "./0", "0/."} {
		s := &wire.TurnSettings{Add: []wire.TurnTransfer{{Name: name, Dest: "x"}}}
		if all, err := transfers(s, dir); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v %v", name, all, err)
		}
	}
}

// TestFull: a turn waits while all places are taken. After the longest wait it is refused, and its
// ticket can be used.
func TestFull(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	s.Share(NewQueue(10*time.Millisecond, 0), "a")
	s.places <- struct{}{}
	s.places <- struct{}{}
	c := s.connect(t, s.client)
	if err := start(c, source, s.ticket.ID, nil); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Fatal(err)
	}
	q := NewQueue(time.Hour, 0)
	s.Share(q, "a")
	close(x.go2)
	started := make(chan error, 1)
	go func() { started <- start(c, source, s.ticket.ID, nil) }()
	for q.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	<-s.places
	q.Wake()
	if err := <-started; err != nil {
		t.Fatal(errors.Unwrap(err))
	}
	waitIdle(s.Service)
	<-s.places
	if len(s.places) != 0 || q.Waiting() != 0 {
		t.Errorf("%d places are taken, %d turns wait", len(s.places), q.Waiting())
	}
}

// TestLeaves: a turn whose client leaves while it waits leaves the queue, and its ticket can be used.
func TestLeaves(t *testing.T) {
	x := newPlayer()
	s := newScene(t, t.TempDir(), x)
	q := NewQueue(time.Hour, 0)
	s.Share(q, "a")
	s.places <- struct{}{}
	s.places <- struct{}{}
	gone := s.connect(t, s.client)
	ended := make(chan error, 1)
	go func() { ended <- start(gone, source, s.ticket.ID, nil) }()
	for q.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	_ = gone.Close()
	if <-ended == nil {
		t.Error("it began")
	}
	for q.Waiting() > 0 {
		time.Sleep(time.Millisecond)
	}
	<-s.places
	<-s.places
	close(x.go2)
	again := func() error { return start(s.connect(t, s.client), source, s.ticket.ID, nil) }
	err := again()
	for turnstone.KindOf(err) == turnstone.KindInvalid { // the first start has not quite ended
		time.Sleep(time.Millisecond)
		err = again()
	}
	if err != nil {
		t.Fatal(err)
	}
	waitIdle(s.Service)
}

// TestFairTurns: one tenant's turns that wait for room at the node do not delay another's by more
// than one.
func TestFairTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(time.Hour, 0)
		room := make(chan struct{}, 1)
		var order []string
		q.Within(func(tenant string, _ Ticket) (func(), error) {
			select {
			case room <- struct{}{}:
				order = append(order, tenant)
				return func() { <-room }, nil
			default:
				return nil, turnstone.Errorf("test", turnstone.KindExhausted, "the node", "is full")
			}
		})
		room <- struct{}{}
		releases := make(chan func(), 3)
		for _, tenant := range []string{"flood", "flood", "quiet"} {
			s := &Service{places: make(chan struct{}, 2), ctx: t.Context()}
			s.Share(q, tenant)
			go func() {
				release, err := s.place(t.Context(), Ticket{})
				if err != nil {
					t.Error(err)
				}
				releases <- release
			}()
			synctest.Wait()
		}
		<-room
		q.Wake()
		for range 3 {
			synctest.Wait()
			(<-releases)()
		}
		if got := fmt.Sprint(order); got != "[flood quiet flood]" {
			t.Errorf("the order is %s", got)
		}
	})
}
