package controller

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/placing"
)

// TestPools: the pools of all nodes together are divided among the nodes that are there, in the
// answers to their registrations.
func TestPools(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.stop()
	w.pools = []placing.Pool{{Tenant: "acme", Template: "base", Min: 3, Max: 8,
		Machine: turnstone.Machine{CPUs: 2}, Cover: 10 * time.Second, Idle: time.Minute}}
	w.start()
	shares := func(n *fakeNode) uint32 {
		must(t, w.loseNodes(t.Context())) // which divides the pools
		a, err := w.peersClient().RegisterNode(t.Context(), connect.NewRequest(
			&v1.RegisterNodeRequest{Node: n.node(), Address: n.address()}))
		must(t, err)
		sum := uint32(0)
		for _, p := range a.Msg.Pools {
			if p.Tenant != "acme" || p.Template != "base" || p.Machine.Cpus != 2 || p.Max < p.Min {
				t.Errorf("%v", p)
			}
			sum += p.Min
		}
		return sum
	}
	for _, n := range w.nodes {
		w.join(n)
	}
	if a, b := shares(w.nodes[0]), shares(w.nodes[1]); a+b != 3 || a == 0 || b == 0 {
		t.Errorf("the nodes got %d and %d of 3", a, b)
	}
	w.Controller.nodes.mu.Lock()
	w.Controller.nodes.fleet.Skip(time.Hour)
	w.Controller.nodes.mu.Unlock()
	w.join(w.nodes[0])
	if a := shares(w.nodes[0]); a != 3 {
		t.Errorf("the only node got %d of 3", a)
	}
}
