package controller

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
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

// TestSetPool: a pool that a caller sets is divided among the nodes, for the caller's tenant only, and
// a token without the scope sets none.
func TestSetPool(t *testing.T) {
	w := newWorld(t, "a", "b")
	set := func(caller auth.Claims, m *v1.SetPoolRequest) (*v1.SetPoolResponse, error) {
		m.Ttl = durationpb.New(time.Minute)
		a, err := w.as(caller).pools.SetPool(t.Context(), connect.NewRequest(m))
		if err != nil {
			return nil, err
		}
		return a.Msg, nil
	}
	shares := func() (all []*v1.PoolShare) {
		for _, n := range w.nodes {
			a, err := w.peersClient().RegisterNode(t.Context(), connect.NewRequest(
				&v1.RegisterNodeRequest{Node: n.node(), Address: n.address()}))
			must(t, err)
			all = append(all, a.Msg.Pools...)
		}
		return all
	}
	pooler := func(tenant string) auth.Claims {
		c := with(tenant)
		c.Scopes = []auth.Scope{auth.PoolsWrite}
		return c
	}
	usual := with("acme")
	usual.Scopes = []auth.Scope{"sandboxes:*"}
	acme := pooler("acme")
	a, err := set(acme, &v1.SetPoolRequest{Name: "python", Machine: &v1.Machine{Cpus: 2}, Count: 6})
	must(t, err)
	all := shares()
	if a.Target != 6 || len(all) != 2 || all[0].Min+all[1].Min != 6 || all[0].Tenant != "acme" ||
		all[0].Template != "base" || all[0].Machine.Cpus != 2 {
		t.Errorf("the answer is %v, and the shares are %v", a, all)
	}
	_, err = set(pooler("other"), &v1.SetPoolRequest{Name: "python"})
	must(t, err)
	if len(shares()) != 2 {
		t.Error("another tenant ended the pool")
	}
	if _, err := set(usual, &v1.SetPoolRequest{Name: "python", Count: 7}); err == nil {
		t.Error("a token without the scope has set a pool")
	}
	if _, err := set(acme, &v1.SetPoolRequest{Name: "Python", Count: 7}); err == nil {
		t.Error("a name that is none is taken")
	}
	_, err = set(acme, &v1.SetPoolRequest{Name: "python"})
	must(t, err)
	if all := shares(); len(all) != 0 {
		t.Errorf("a pool that has ended has the shares %v", all)
	}
}
