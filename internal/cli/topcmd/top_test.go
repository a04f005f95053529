package topcmd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/terminal/terminaltest"
	"turnstone.dev/turnstone/sandboxes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostileNames: no name is obeyed by a terminal, or makes a line of its own.
func TestHostileNames(t *testing.T) {
	r := terminaltest.Filled[Report]()
	v := view{report: r, fault: errors.New(terminaltest.Hostile)}
	lines := v.lines(time.Now())
	for _, l := range lines {
		terminaltest.Harmless(t, "top", l)
	}
	if len(lines) != 3+1+3+1+3 { // two of each
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// TestReport: what is printed of turns and sandboxes.
func TestReport(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := &Report{Turns: []TopTurn{{Ticket: "tk_1", State: "reserved", Since: now.Add(-time.Second)},
		{ID: "t_1", Session: "research", Number: 3, State: "running", Since: now.Add(-time.Minute)}},
		Sandboxes: []TopSandbox{{ID: "sb_1", Name: "web", State: "paused", Since: now.Add(-time.Hour),
			CPUs: 2, Memory: 1 << 30, CPUTime: turnstone.Millis(1500 * time.Millisecond), Used: 5 << 20}}}
	r.sort()
	var b bytes.Buffer
	r.print(&b, now)
	for _, want := range []string{"turns: 1 running, 1 reserved; sandboxes: 1 (1 paused)\n",
		"t_1   research@3  running ", "tk_1  -           reserved ", "1.5s", "5.0 MiB of 1.0 GiB"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if strings.Index(b.String(), "t_1 ") > strings.Index(b.String(), "tk_1") {
		t.Errorf("the longest is not first:\n%s", b.String())
	}
}

// A server answers watches from its channels.
type server struct {
	connectv1.UnimplementedTurnServiceHandler
	connectv1.UnimplementedSandboxServiceHandler
	turns     chan *v1.WatchTurnsResponse // nil ends the watch
	sandboxes chan *v1.WatchSandboxesResponse
	left      chan bool // gets an element when a watch of sandboxes has ended
}

func (s *server) WatchTurns(ctx context.Context, _ *connect.Request[v1.WatchTurnsRequest],
	out *connect.ServerStream[v1.WatchTurnsResponse]) error {
	for {
		select {
		case m := <-s.turns:
			if m == nil {
				return connect.NewError(connect.CodeUnavailable, errors.New("the controller ends"))
			}
			if err := out.Send(m); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *server) WatchSandboxes(ctx context.Context, _ *connect.Request[v1.WatchSandboxesRequest],
	out *connect.ServerStream[v1.WatchSandboxesResponse]) error {
	defer func() { s.left <- true }()
	for {
		select {
		case m := <-s.sandboxes:
			if err := out.Send(m); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serve starts a server on a socket, and returns the source that watches it.
func serve(t *testing.T) (*server, *remoteSource) {
	t.Helper()
	s := &server{turns: make(chan *v1.WatchTurnsResponse, 100),
		sandboxes: make(chan *v1.WatchSandboxesResponse, 100), left: make(chan bool, 100)}
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewTurnServiceHandler(s))
	mux.Handle(connectv1.NewSandboxServiceHandler(s))
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	check(t, err)
	h := &http.Server{Handler: mux}
	var wg sync.WaitGroup
	wg.Go(func() { _ = h.Serve(l) })
	t.Cleanup(func() { _ = h.Close(); wg.Wait() })
	at, err := remote.ParseAddress("unix:" + path)
	check(t, err)
	r := remote.NewServer(remote.ServerOptions{Address: at, Own: true, Key: channel.NewKeyPair()})
	t.Cleanup(func() { _ = r.Close() })
	return s, &remoteSource{server: r}
}

func (s *server) turn(event v1.WatchEvent, id string, state v1.TurnState) {
	s.turns <- &v1.WatchTurnsResponse{Event: event, Turn: &v1.Turn{TicketId: id, Session: "a",
		State: state, Created: timestamppb.Now(), Started: timestamppb.Now()}}
}

func (s *server) sandbox(event v1.WatchEvent, id string, state v1.SandboxState) {
	s.sandboxes <- &v1.WatchSandboxesResponse{Event: event, Sandbox: &v1.Sandbox{SandboxId: id,
		State: state, Created: timestamppb.Now()}}
}

func (s *server) synced() {
	s.turns <- &v1.WatchTurnsResponse{Event: v1.WatchEvent_WATCH_EVENT_SYNCED}
	s.sandboxes <- &v1.WatchSandboxesResponse{Event: v1.WatchEvent_WATCH_EVENT_SYNCED}
}

const (
	listed  = v1.WatchEvent_WATCH_EVENT_LISTED
	changed = v1.WatchEvent_WATCH_EVENT_CHANGED
	deleted = v1.WatchEvent_WATCH_EVENT_DELETED
	running = v1.TurnState_TURN_STATE_RUNNING
	ready   = v1.SandboxState_SANDBOX_STATE_READY
)

// TestOnce: once is what there is when both lists are complete, without what has ended.
func TestOnce(t *testing.T) {
	s, src := serve(t)
	s.turn(listed, "tk_1", running)
	s.turn(listed, "tk_2", v1.TurnState_TURN_STATE_RESERVED)
	s.turn(listed, "tk_3", v1.TurnState_TURN_STATE_DONE)
	s.turn(listed, strings.Repeat("x", 1000), running)
	s.sandbox(listed, "sb_1", ready)
	s.sandbox(listed, "sb_2", v1.SandboxState_SANDBOX_STATE_FAILED)
	s.synced()
	r, err := src.once(t.Context())
	check(t, err)
	if got := r.summary(); got != "turns: 1 running, 1 reserved; sandboxes: 1 (1 ready)" {
		t.Errorf("%s: %+v", got, r)
	}
}

// TestOnceFails: a server that ends a watch is an error, and no empty list.
func TestOnceFails(t *testing.T) {
	s, src := serve(t)
	s.turn(listed, "tk_1", running)
	s.turns <- nil
	if r, err := src.once(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable || r != nil {
		t.Errorf("%v, %v", r, err)
	}
}

// TestFollow: changes are shown, and a connection that is lost is made again with a fresh list.
func TestFollow(t *testing.T) {
	s, src := serve(t)
	ctx, stop := context.WithCancel(t.Context())
	type shown struct {
		text string
		err  error
	}
	seen := make(chan shown, 100)
	done := make(chan error)
	go func() {
		done <- src.follow(ctx, func(r *Report, err error) { seen <- shown{r.summary(), err} })
	}()
	until := func(text string, fault bool) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got.text == text && (got.err != nil) == fault {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("%q is not shown", text)
			}
		}
	}
	s.turn(listed, "tk_1", running)
	s.synced()
	until("turns: 1 running; sandboxes: 0", false)
	s.turn(changed, "tk_2", running)
	s.sandbox(changed, "sb_1", ready)
	until("turns: 2 running; sandboxes: 1 (1 ready)", false)
	s.turn(changed, "tk_1", v1.TurnState_TURN_STATE_DONE)
	s.sandbox(deleted, "sb_1", ready)
	until("turns: 1 running; sandboxes: 0", false)
	s.turns <- nil
	until("turns: 1 running; sandboxes: 0", true)
	<-s.left // it would take what the next one has to send
	s.synced()
	until("turns: 0 running; sandboxes: 0", false)
	stop()
	check(t, <-done)
}

// fakes are the sandboxes and sessions of a machine.
type fakes struct{ broken error }

func (f fakes) List(context.Context) ([]sandboxes.Info, error) {
	return []sandboxes.Info{{ID: "sb_1", State: sandboxes.StateReady, Paused: true},
		{ID: "sb_2", State: sandboxes.StateStopped}}, f.broken
}

func (f fakes) Sessions(context.Context) ([]turnstone.SessionInfo, error) {
	return []turnstone.SessionInfo{{Session: turnstone.Session{ID: "s_1", Name: "a"}, Running: 1},
		{Session: turnstone.Session{ID: "s_2"}}, {Session: turnstone.Session{ID: "s_3"}, Running: 1}}, nil
}

func (f fakes) Session(_ context.Context, id string) (*turnstone.Graph, error) {
	if id == "s_3" {
		return nil, turnstone.Errorf("x", turnstone.KindNotFound, id, "was removed")
	}
	return &turnstone.Graph{Turns: []turnstone.Turn{{ID: "t_2", Number: 2, Status: turnstone.TurnRunning},
		{ID: "t_1", Number: 1, Status: turnstone.TurnDone}}}, nil
}

// TestLocal: turns and sandboxes that run here, also if a part cannot be read.
func TestLocal(t *testing.T) {
	r, err := (&localSource{fakes{}, fakes{}}).once(t.Context())
	check(t, err)
	if got := r.summary(); got != "turns: 1 running; sandboxes: 1 (1 paused)" ||
		r.Turns[0].ID != "t_2" || r.Turns[0].Session != "a" {
		t.Errorf("%s: %+v", got, r)
	}
	fault := errors.New("x")
	if r, err = (&localSource{fakes{}, fakes{fault}}).once(t.Context()); !errors.Is(err, fault) ||
		len(r.Turns) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
