package placing_test

import (
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/placing"
)

// TestDiskFull: new work goes to the node whose disk has room, is refused when none has, and goes to
// each again when it says that it has.
func TestDiskFull(t *testing.T) {
	f := placing.New(placing.Options{Lost: time.Minute})
	node := func(name string, full bool) *v1.Node {
		return &v1.Node{Name: name, DiskFull: full,
			Capacity: &v1.Machine{Cpus: 64, Memory: 1 << 40, Disk: 1 << 40}}
	}
	for _, name := range []string{"a", "b"} {
		f.Register(node(name, false))
		f.Sync(name, true)
	}
	need := placing.Need{Tenant: "x", Machine: &v1.Machine{Cpus: 1, Memory: 1 << 20, Disk: 1 << 20}}
	f.Learn(node("a", true))
	for range 5 {
		r, err := f.Place(need)
		if err != nil || r.Node != "b" {
			t.Errorf("placed on %q: %v", r.Node, err)
		}
		f.Done(r)
	}
	f.Learn(node("b", true))
	if r, err := f.Place(need); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("placed on %q although all disks are full: %v", r.Node, err)
	}
	f.Learn(node("a", false))
	if r, err := f.Place(need); err != nil || r.Node != "a" {
		t.Errorf("placed on %q: %v", r.Node, err)
	}
}

// TestStoreAway: a turn, or a sandbox of a session, goes to a node that reaches its bucket, and is refused
// when none does, also where the session is at one node. Other sandboxes go to each.
func TestStoreAway(t *testing.T) {
	f := placing.New(placing.Options{Lost: time.Minute})
	node := func(name, away string) *v1.Node {
		return &v1.Node{Name: name, StoreAway: away,
			Capacity: &v1.Machine{Cpus: 64, Memory: 1 << 40, Disk: 1 << 40}}
	}
	f.Register(node("a", "it does not answer"))
	f.Register(node("b", ""))
	for _, name := range []string{"a", "b"} {
		f.Sync(name, true)
	}
	turn := placing.Need{Machine: &v1.Machine{Cpus: 1, Memory: 1 << 20, Disk: 1 << 20}, Store: true}
	at, plain := turn, turn
	at.Node, plain.Store, plain.Node = "a", false, "a"
	for range 5 {
		if r, err := f.Place(turn); err != nil || r.Node != "b" {
			t.Errorf("placed on %q: %v", r.Node, err)
		}
	}
	refused := func(n placing.Need) {
		t.Helper()
		if r, err := f.Place(n); turnstone.KindOf(err) != turnstone.KindUnavailable || !api.Retryable(err) ||
			!strings.Contains(err.Error(), "bucket") {
			t.Errorf("placed on %q although the bucket is away: %v", r.Node, err)
		}
	}
	refused(at)
	if r, err := f.Place(plain); err != nil || r.Node != "a" {
		t.Errorf("a sandbox without a session: placed on %q: %v", r.Node, err)
	}
	f.Learn(node("b", "it does not answer"))
	refused(turn)
	f.Learn(node("a", ""))
	if r, err := f.Place(turn); err != nil || r.Node != "a" {
		t.Errorf("placed on %q: %v", r.Node, err)
	}
}
