package control_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// A view is what a watcher knows.
type view struct {
	t      *testing.T
	stream *connect.ServerStreamForClient[v1.WatchNodeResponse]
	stop   context.CancelFunc
}

func (s *scene) watch(t *testing.T) *view {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r, err := s.WatchNode(ctx, connect.NewRequest(&v1.WatchNodeRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	v := &view{t, r, stop}
	t.Cleanup(v.close)
	return v
}

func (v *view) close() { v.stop(); _ = v.stream.Close() }

// until reads until f accepts an event.
func (v *view) until(what string, f func(*v1.WatchNodeResponse) bool) {
	v.t.Helper()
	for v.stream.Receive() {
		if f(v.stream.Msg()) {
			return
		}
	}
	v.t.Fatalf("%s did not come: %v", what, v.stream.Err())
}

func synced(r *v1.WatchNodeResponse) bool { return r.Event == v1.WatchEvent_WATCH_EVENT_SYNCED }

// TestWatch lists what there is, and then tells of each kind of object.
func TestWatch(t *testing.T) {
	s, ada := newScene(t, nil), of("ada")
	old := s.made(t, ada, func(q *v1.CreateSandboxRequest) { q.ManagedBy = "test/old" })
	s.stop(t)
	s.start(t)
	v := s.watch(t)
	var listed []string
	v.until("the list", func(r *v1.WatchNodeResponse) bool {
		if r.Event == v1.WatchEvent_WATCH_EVENT_LISTED {
			listed = append(listed, fmt.Sprintf("%T", r.Object))
			if sb := r.GetSandbox(); sb != nil && (sb.Tenant != "ada" ||
				sb.Sandbox.SandboxId != old.SandboxId || sb.Sandbox.Metadata != nil || sb.Sandbox.ManagedBy != "test/old") {
				t.Errorf("%v", sb)
			}
		}
		return synced(r)
	})
	counts := map[string]int{}
	for _, kind := range listed {
		counts[kind]++
	}
	if counts["*turnstonev1.WatchNodeResponse_Sandbox"] != 1 ||
		counts["*turnstonev1.WatchNodeResponse_Node"] != 1 ||
		counts["*turnstonev1.WatchNodeResponse_Template"] == 0 {
		t.Fatal(counts)
	}
	changed := func(r *v1.WatchNodeResponse) bool {
		return r.Event == v1.WatchEvent_WATCH_EVENT_CHANGED
	}
	sb := s.made(t, ada, nil)
	v.until("a sandbox", func(r *v1.WatchNodeResponse) bool {
		return changed(r) && r.GetSandbox().GetSandbox().GetSandboxId() == sb.SandboxId &&
			r.GetSandbox().Tenant == "ada" && r.GetSandbox().Sandbox.State ==
			v1.SandboxState_SANDBOX_STATE_READY
	})
	ticket := ticketID()
	if _, err := s.reserve(t, ada, ticket, nil); err != nil {
		t.Fatal(err)
	}
	v.until("a turn", func(r *v1.WatchNodeResponse) bool {
		return changed(r) && r.GetTurn().GetTurn().GetTicketId() == ticket &&
			r.GetTurn().Tenant == "ada"
	})
	id := sessionID()
	if _, err := s.session(t, of("bob"), id, "work"); err != nil {
		t.Fatal(err)
	}
	v.until("a session", func(r *v1.WatchNodeResponse) bool {
		return changed(r) && r.GetSession().GetSession().GetSessionId() == id &&
			r.GetSession().Tenant == "bob"
	})
	snap := snapshotID()
	if _, err := call(t, s.SnapshotSandbox, &v1.NodeServiceSnapshotSandboxRequest{
		Principal: ada.Principal, SnapshotId: snap,
		Request: &v1.SnapshotSandboxRequest{SandboxId: sb.SandboxId}}); err != nil {
		t.Fatal(err)
	}
	v.until("a snapshot", func(r *v1.WatchNodeResponse) bool {
		return changed(r) && r.GetSnapshot().GetSnapshot().GetSnapshotId() == snap
	})
	if _, err := s.remove(t, ada, sb.SandboxId); err != nil {
		t.Fatal(err)
	}
	v.until("a removal", func(r *v1.WatchNodeResponse) bool {
		return r.Event == v1.WatchEvent_WATCH_EVENT_DELETED &&
			r.GetSandbox().GetSandbox().GetSandboxId() == sb.SandboxId
	})
}

// TestWatchOthers: what local commands do is seen too.
func TestWatchOthers(t *testing.T) {
	s := newScene(t, nil)
	v := s.watch(t)
	v.until("the list", synced)
	st, err := s.set.Of(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	i, err := st.Sandboxes.Create(t.Context(), localSpec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	of := func(r *v1.WatchNodeResponse) *v1.Sandbox { return r.GetSandbox().GetSandbox() }
	v.until("it", func(r *v1.WatchNodeResponse) bool {
		return of(r).GetSandboxId() == string(i.ID) &&
			of(r).State == v1.SandboxState_SANDBOX_STATE_READY
	})
	if err := st.Sandboxes.Stop(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	v.until("its end", func(r *v1.WatchNodeResponse) bool {
		return of(r).GetState() == v1.SandboxState_SANDBOX_STATE_STOPPED
	})
	if err := st.Sandboxes.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	v.until("its removal", func(r *v1.WatchNodeResponse) bool {
		return r.Event == v1.WatchEvent_WATCH_EVENT_DELETED && of(r).GetSandboxId() == string(i.ID)
	})
	made, err := st.Executor.CreateSession(t.Context(), turnstone.NewSessionID(), "local")
	if err != nil {
		t.Fatal(err)
	}
	v.until("a session", func(r *v1.WatchNodeResponse) bool {
		return r.GetSession().GetSession().GetSessionId() == string(made.ID)
	})
}

// TestManyWatchers refuses those beyond the limit, until another leaves.
func TestManyWatchers(t *testing.T) {
	s := newScene(t, nil)
	var all []*view
	for range 16 {
		v := s.watch(t)
		v.until("the list", synced)
		all = append(all, v)
	}
	one := s.watch(t)
	for one.stream.Receive() {
		t.Fatal(one.stream.Msg())
	}
	err := api.FromConnect(one.stream.Err())
	want(t, "one more", err, turnstone.KindExhausted)
	if api.RetryAfter(err) == 0 {
		t.Error("when?")
	}
	all[0].close()
	eventually(t, "its place stays taken", func() bool {
		v := s.watch(t)
		defer v.close()
		return v.stream.Receive()
	})
}

// TestWatchEnds: a watch ends with the service.
func TestWatchEnds(t *testing.T) {
	s := newScene(t, nil)
	v := s.watch(t)
	v.until("the list", synced)
	if err := s.service.Close(); err != nil {
		t.Fatal(err)
	}
	for v.stream.Receive() {
	}
	want(t, "the end", api.FromConnect(v.stream.Err()), turnstone.KindUnavailable)
}

// TestConcurrency does everything at the same time.
func TestConcurrency(t *testing.T) {
	s := newScene(t, nil)
	v := s.watch(t)
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			p := of(fmt.Sprintf("t%d", n%2))
			id := sandboxID()
			if _, err := s.create(t, p, id, nil); err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			for range 3 {
				inner.Go(func() {
					if _, err := s.connect(t, p, id); err != nil {
						t.Error(err)
					}
				})
				inner.Go(func() {
					if _, err := s.reserve(t, p, ticketID(), nil); err != nil {
						t.Error(err)
					}
				})
				inner.Go(func() {
					if _, err := s.session(t, p, sessionID(), ""); err != nil {
						t.Error(err)
					}
				})
			}
			inner.Wait()
			if _, err := s.remove(t, p, id); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	v.until("the list", synced)
}
