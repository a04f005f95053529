package control

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

func session(id string, turns uint32) *v1.WatchNodeResponse {
	return &v1.WatchNodeResponse{Object: &v1.WatchNodeResponse_Session{
		Session: &v1.OwnedSession{Tenant: "t", Session: &v1.Session{SessionId: id, Turns: turns}}}}
}

// TestSlowWatcher: whatever happens, a watcher that reads at any time ends with what is on the board,
// and no more than one change for each object waits for it.
func TestSlowWatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, known := newBoard(), map[string]uint32{}
		b.set(name{kindSession, "t", "0"}, session("0", 7))
		w, listed := b.watch(1)
		for _, d := range listed {
			known[d.GetSession().Session.SessionId] = d.GetSession().Session.Turns
		}
		if other, _ := b.watch(1); other != nil {
			t.Fatal("more watchers than the limit")
		}
		read := func() bool {
			d := b.take(w)
			if d == nil {
				return false
			}
			s := d.GetSession().Session
			if d.Event == v1.WatchEvent_WATCH_EVENT_DELETED {
				delete(known, s.SessionId)
			} else {
				known[s.SessionId] = s.Turns
			}
			return true
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			id := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "id"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				b.set(name{kindSession, "t", id}, session(id, rapid.Uint32Range(0, 3).Draw(t, "n")))
			case 2:
				b.drop(name{kindSession, "t", id})
			case 3:
				read()
			}
			if len(w.order) > 5 || len(w.order) != len(w.changes) {
				t.Fatalf("%d changes wait, %d names", len(w.changes), len(w.order))
			}
		}
		for read() {
		}
		if len(known) != len(b.objects) {
			t.Fatalf("%v, %v", known, b.objects)
		}
		for n, d := range b.objects {
			if known[n.id] != d.GetSession().Session.Turns {
				t.Fatalf("%s: %d", n.id, known[n.id])
			}
		}
		b.unwatch(w)
		b.set(name{kindSession, "t", "9"}, session("9", 1))
		if b.take(w) != nil {
			t.Fatal("a watcher that left is told")
		}
	})
}
