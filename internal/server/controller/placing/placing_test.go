package placing_test

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
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
