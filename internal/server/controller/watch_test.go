package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

const evAlive = v1.WatchEvent_WATCH_EVENT_ALIVE

// A boxWatch is a watch of sandboxes.
type boxWatch struct {
	*world
	stream *connect.ServerStreamForClient[v1.WatchSandboxesResponse]
}

func (w *world) watchBoxes(c *callerClient, f *v1.SandboxFilter) *boxWatch {
	w.Helper()
	ctx, stop := context.WithCancel(w.Context())
	s, err := c.sandboxes.WatchSandboxes(ctx, ask(&v1.WatchSandboxesRequest{Filter: f}))
	must(w, err)
	w.Cleanup(func() { stop(); _ = s.Close() })
	return &boxWatch{w, s}
}

// next returns the next event that is not about the connection.
func (b *boxWatch) next() *v1.WatchSandboxesResponse {
	b.Helper()
	for b.stream.Receive() {
		if b.stream.Msg().Event != evAlive {
			return b.stream.Msg()
		}
	}
	b.Fatalf("the watch ended: %v", b.stream.Err())
	return nil
}

// until skips events until one is as it should be.
func (b *boxWatch) until(e v1.WatchEvent, ok func(*v1.Sandbox) bool) {
	b.Helper()
	for {
		if m := b.next(); m.Event == e && ok(m.Sandbox) {
			return
		}
	}
}

// set changes a sandbox of a node, as its machine does.
func (w *world) set(id string, f func(*v1.Sandbox)) {
	for _, n := range w.nodes {
		n.mu.Lock()
		if x := n.sandboxes[id]; x != nil {
			n.set(x, f)
		}
		n.mu.Unlock()
	}
}

func running(s *v1.Sandbox) { s.State = v1.SandboxState_SANDBOX_STATE_RUNNING }
func ready(s *v1.Sandbox)   { s.State = v1.SandboxState_SANDBOX_STATE_READY }

// TestWatch: a list, its end, and the changes, also of what stops to match.
func TestWatch(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	var ids []string
	for range 3 {
		ids = append(ids, w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId)
	}
	theirs := w.create(w.as(with("other")), &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	all := w.watchBoxes(c, nil)
	some := w.watchBoxes(c, &v1.SandboxFilter{States: []v1.SandboxState{
		v1.SandboxState_SANDBOX_STATE_READY}})
	for _, b := range []*boxWatch{all, some} {
		var listed []string
		for m := b.next(); m.Event != evSynced; m = b.next() {
			if m.Event != evListed {
				t.Fatalf("%v before the end of the list", m.Event)
			}
			listed = append(listed, m.Sandbox.SandboxId)
		}
		slices.Sort(listed)
		if !slices.Equal(listed, ids) {
			t.Fatalf("listed %v, want %v", listed, ids)
		}
	}
	w.set(theirs, running)
	w.set(ids[0], running)
	is := func(id string, state v1.SandboxState) func(*v1.Sandbox) bool {
		return func(s *v1.Sandbox) bool {
			if s.SandboxId == theirs {
				t.Error("a watch shows another tenant's sandbox")
			}
			return s.SandboxId == id && s.State == state
		}
	}
	all.until(evChanged, is(ids[0], v1.SandboxState_SANDBOX_STATE_RUNNING))
	some.until(evDeleted, is(ids[0], v1.SandboxState_SANDBOX_STATE_RUNNING))
	w.set(ids[0], ready)
	all.until(evChanged, is(ids[0], v1.SandboxState_SANDBOX_STATE_READY))
	some.until(evChanged, is(ids[0], v1.SandboxState_SANDBOX_STATE_READY))
	_, err := c.sandboxes.DeleteSandbox(t.Context(),
		ask(&v1.DeleteSandboxRequest{SandboxId: ids[1]}))
	must(t, err)
	all.until(evChanged, is(ids[1], v1.SandboxState_SANDBOX_STATE_STOPPED))
	some.until(evDeleted, is(ids[1], v1.SandboxState_SANDBOX_STATE_STOPPED))
	fresh := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	all.until(evChanged, is(fresh, v1.SandboxState_SANDBOX_STATE_READY))
}

// TestWatchMerges: a watch that misses changes gets the latest state of each object, and never an
// older one after a newer one.
func TestWatchMerges(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	b := w.watchBoxes(c, nil)
	b.until(evSynced, func(*v1.Sandbox) bool { return true })
	const changes = 300
	for i := range changes {
		f := running
		if i%2 == 1 {
			f = ready
		}
		w.set(id, f)
	}
	w.set(id, func(s *v1.Sandbox) { s.State = v1.SandboxState_SANDBOX_STATE_STOPPED })
	seen := 0
	var last time.Time
	b.until(evChanged, func(s *v1.Sandbox) bool {
		seen++
		if at := s.Changed.AsTime(); at.Before(last) {
			t.Errorf("an older state follows: %v after %v", at, last)
		} else {
			last = at
		}
		return s.State == v1.SandboxState_SANDBOX_STATE_STOPPED
	})
	if seen > changes {
		t.Errorf("%d events", seen)
	}
}

// TestWatchIsAlive: an idle watch says that it is alive.
func TestWatchIsAlive(t *testing.T) {
	w := newWorld(t, "a")
	b := w.watchBoxes(w.as(with("acme")), nil)
	for n := 0; n < 3; {
		if !b.stream.Receive() {
			t.Fatal(b.stream.Err())
		}
		if b.stream.Msg().Event == evAlive {
			n++
		}
	}
}

// TestWatchEndsWithItsToken: a watch ends when its token expires or is revoked, and other watches
// continue.
func TestWatchEndsWithItsToken(t *testing.T) {
	w := newWorld(t, "a")
	admin := w.as(with("acme"))
	made, err := admin.server.CreateToken(t.Context(), ask(&v1.CreateTokenRequest{Name: "x",
		Ttl: duration(time.Minute)}))
	must(t, err)
	revoked := w.watchBoxes(w.bearer(made.Msg.Secret), nil)
	stays := w.watchBoxes(admin, nil)
	revoked.until(evSynced, func(*v1.Sandbox) bool { return true })
	stays.until(evSynced, func(*v1.Sandbox) bool { return true })
	_, err = admin.server.RevokeToken(t.Context(), ask(&v1.RevokeTokenRequest{
		TokenId: made.Msg.Token.TokenId}))
	must(t, err)
	for revoked.stream.Receive() {
	}
	if s := w.fails(revoked.stream.Err(), connect.CodeUnauthenticated); s.Reason != "revoked" {
		t.Errorf("the watch ended with %v", s)
	}
	_, err = w.bearer(made.Msg.Secret).sandboxes.ListSandboxes(t.Context(),
		ask(&v1.ListSandboxesRequest{}))
	if s := w.fails(err, connect.CodeUnauthenticated); s.Reason != "revoked" {
		t.Errorf("%v", s)
	}
	w.create(admin, &v1.CreateSandboxRequest{})
	stays.until(evChanged, func(*v1.Sandbox) bool { return true })
}

// TestOtherWatches: turns, sessions and templates are watched in the same way.
func TestOtherWatches(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	turns, err := c.turns.WatchTurns(ctx, ask(&v1.WatchTurnsRequest{}))
	must(t, err)
	sessions, err := c.sessions.WatchSessions(ctx, ask(&v1.WatchSessionsRequest{}))
	must(t, err)
	templates, err := c.templates.WatchTemplates(ctx, ask(&v1.WatchTemplatesRequest{}))
	must(t, err)
	ticket := w.startTurn(c, "k", "research").Turn.TicketId
	w.nodes[0].finish(ticket)
	for turns.Receive() && turns.Msg().Turn.GetState() != v1.TurnState_TURN_STATE_DONE {
	}
	for sessions.Receive() && sessions.Msg().Session.GetTurns() != 1 {
	}
	if s := sessions.Msg().Session; s.GetName() != "research" {
		t.Fatalf("%v, %v", s, sessions.Err())
	}
	_, err = c.sessions.DeleteSession(ctx, ask(&v1.DeleteSessionRequest{Session: "research"}))
	must(t, err)
	for sessions.Receive() && sessions.Msg().Event != evDeleted {
	}
	if sessions.Msg().Session.GetName() != "research" {
		t.Fatalf("%v, %v", sessions.Msg(), sessions.Err())
	}
	_, err = c.templates.BuildTemplate(ctx, ask(&v1.BuildTemplateRequest{Template: "python"}))
	must(t, err)
	for templates.Receive() && (templates.Msg().Event != evChanged ||
		templates.Msg().Template.GetName() != "python") {
	}
	must(t, templates.Err())
	_, err = c.templates.DeleteTemplate(ctx, ask(&v1.DeleteTemplateRequest{Template: "base"}))
	must(t, err)
	for templates.Receive() && (templates.Msg().Event != evDeleted ||
		templates.Msg().Template.GetName() != "base") {
	}
	must(t, templates.Err())
}

// TestLimitOfWatches: beyond the limit a watch is refused for now.
func TestLimitOfWatches(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	w.hub.mu.Lock()
	w.hub.max = 2
	w.hub.mu.Unlock()
	for range 2 {
		w.watchBoxes(c, nil).until(evSynced, func(*v1.Sandbox) bool { return true })
	}
	b := w.watchBoxes(c, nil)
	for b.stream.Receive() {
	}
	if s := w.fails(b.stream.Err(), connect.CodeResourceExhausted); api.RetryAfter(s) == 0 {
		t.Errorf("%v", s)
	}
}

// TestPages: all objects are on exactly one page, also when patterns hide most of them.
func TestPages(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	for i := range 23 {
		name := fmt.Sprint("other-", i)
		if i%7 == 0 {
			name = fmt.Sprint("ci-", i)
		}
		_, err := c.sessions.CreateSession(t.Context(), ask(&v1.CreateSessionRequest{Name: name,
			Client: newClient()}))
		must(t, err)
		w.nodes[0].mu.Lock()
		w.nodes[0].templates[fmt.Sprint("t", i)] = &v1.Template{Name: fmt.Sprint("t", i)}
		w.nodes[0].tell(evChanged, w.nodes[0].templates[fmt.Sprint("t", i)])
		w.nodes[0].mu.Unlock()
	}
	claims := with("acme")
	claims.Sessions = []auth.Pattern{"ci-*"}
	for who, want := range map[*callerClient]int{c: 23, w.as(claims): 4} {
		found := map[string]bool{}
		for token, pages := "", 0; pages == 0 || token != ""; pages++ {
			m, err := who.sessions.ListSessions(t.Context(), ask(&v1.ListSessionsRequest{
				Page: &v1.Page{Size: 3, Token: token}}))
			must(t, err)
			for _, s := range m.Msg.Sessions {
				if found[s.Name] {
					t.Errorf("%s is on two pages", s.Name)
				}
				found[s.Name] = true
			}
			if token = m.Msg.NextPageToken; token != "" && len(m.Msg.Sessions) == 0 {
				t.Error("a page is empty, and not the last one")
			}
		}
		if len(found) != want {
			t.Errorf("%d sessions, want %d", len(found), want)
		}
	}
	w.eventually("the templates are known", func() bool { return len(w.nodesTemplates()) == 24 })
	found := map[string]bool{}
	for token, pages := "", 0; pages == 0 || token != ""; pages++ {
		m, err := c.templates.ListTemplates(t.Context(), ask(&v1.ListTemplatesRequest{
			Page: &v1.Page{Size: 5, Token: token}}))
		must(t, err)
		for _, x := range m.Msg.Templates {
			if found[x.Name] {
				t.Errorf("%s is on two pages", x.Name)
			}
			found[x.Name] = true
		}
		token = m.Msg.NextPageToken
	}
	if len(found) != 24 {
		t.Errorf("%d templates", len(found))
	}
	for _, token := range []string{"AAAA", "abc", "x-y_z"} {
		_, err := c.templates.ListTemplates(t.Context(), ask(&v1.ListTemplatesRequest{
			Page: &v1.Page{Token: token}}))
		w.fails(err, connect.CodeInvalidArgument)
		_, err = c.turns.ListTurns(t.Context(), ask(&v1.ListTurnsRequest{
			Page: &v1.Page{Token: token}}))
		w.fails(err, connect.CodeInvalidArgument)
	}
}

func (w *world) nodesTemplates() map[string]*v1.Template { return w.Controller.nodes.templates() }
