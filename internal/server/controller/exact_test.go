package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
)

// limit is what each tenant of TestQuotaIsExact may have.
var limit = quota.Limits{Sandboxes: 9, CPUs: 16}

// An exactness counts what nodes have.
type exactness struct {
	*world
	over atomic.Int64 // creations after which a tenant had too much
}

// look counts the sandboxes of all nodes for a tenant.
func (x *exactness) look(tenant string) (sandboxes, cpus int) {
	for _, n := range x.nodes { // in one order: a look never waits for another that waits for it
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	for _, n := range x.nodes {
		for _, s := range n.sandboxes {
			if s.Tenant == tenant {
				sandboxes, cpus = sandboxes+1, cpus+int(s.Sandbox.Machine.GetCpus())
			}
		}
	}
	return sandboxes, cpus
}

// TestQuotaIsExact: whatever tenants create and remove at the same time, with keys that repeat, new
// sessions, and nodes that fail, none ever has more than its quota, each call of a key gets the same
// sandbox, and in the end each can have exactly its quota, also after a restart.
func TestQuotaIsExact(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.stop()
	w.quota = func(string) quota.Limits { return limit }
	w.start()
	x := &exactness{world: w}
	var failing atomic.Bool
	failing.Store(true)
	for i, n := range w.nodes {
		r, mu := rand.New(rand.NewPCG(uint64(i), 7)), sync.Mutex{}
		n.before = func(_ context.Context, method, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if method == "CreateSandbox" && failing.Load() && r.IntN(5) == 0 {
				return api.ToConnect(turnstone.Errorf("node", turnstone.KindUnavailable, "the node", "fails"))
			}
			return nil
		}
		n.after = func(_ context.Context, method, _ string) error {
			for _, tenant := range []string{"acme", "other"} {
				if s, cpus := x.look(tenant); s > limit.Sandboxes || cpus > limit.CPUs {
					x.over.Add(1)
				}
			}
			return nil
		}
		w.join(n)
	}
	x.storm()
	failing.Store(false)
	if n := x.over.Load(); n > 0 {
		t.Errorf("%d times a tenant had more than its quota", n)
	}
	for _, tenant := range []string{"acme", "other"} {
		x.fills(tenant)
	}
	w.restart()
	for _, tenant := range []string{"acme", "other"} {
		_, err := w.as(with(tenant)).sandboxes.CreateSandbox(t.Context(), box("after", 1))
		w.fails(err, connect.CodeResourceExhausted)
	}
	w.stop()
	_, err := audit.Read(w.dir+"/audit", "", func(audit.Entry) error { return nil })
	must(t, err)
}

// storm creates and removes for a while.
func (x *exactness) storm() {
	var all sync.WaitGroup
	for i := range 24 {
		tenant := []string{"acme", "other"}[i%2]
		c, r := x.as(with(tenant)), rand.New(rand.NewPCG(uint64(i), 9))
		all.Go(func() {
			for n := range 25 {
				m := box("", uint32(1+r.IntN(3)))
				if r.IntN(3) > 0 {
					m.Msg.IdempotencyKey = fmt.Sprint(i/8, "-", n) // several callers have it
					m.Msg.Machine.Cpus = uint32(1 + n%3)
				}
				if r.IntN(8) == 0 && m.Msg.IdempotencyKey == "" {
					m.Msg.ContextId = fmt.Sprint("new", r.IntN(5))
				}
				made, err := c.sandboxes.CreateSandbox(x.Context(), m)
				if err == nil && r.IntN(10) > 0 {
					_, _ = c.sandboxes.DeleteSandbox(x.Context(), ask(&v1.DeleteSandboxRequest{
						SandboxId: made.Msg.Sandbox.SandboxId}))
				}
			}
		})
	}
	all.Wait()
}

// fills removes all sandboxes of a tenant, and creates as many at once as it may have, and more.
func (x *exactness) fills(tenant string) {
	x.Helper()
	c := x.as(with(tenant))
	x.eventually("nothing of "+tenant+" counts", func() bool {
		list, err := c.sandboxes.ListSandboxes(x.Context(), ask(&v1.ListSandboxesRequest{
			Filter: &v1.SandboxFilter{States: []v1.SandboxState{v1.SandboxState_SANDBOX_STATE_CREATING,
				v1.SandboxState_SANDBOX_STATE_READY, v1.SandboxState_SANDBOX_STATE_RUNNING}}}))
		must(x, err)
		for _, s := range list.Msg.Sandboxes {
			_, _ = c.sandboxes.DeleteSandbox(x.Context(), ask(&v1.DeleteSandboxRequest{SandboxId: s.SandboxId}))
		}
		x.giveUpNow()
		s := x.ledger.Standing(tenant)
		return s.Held == 0 && s.CPUs == 0
	})
	var all sync.WaitGroup
	var served, refused atomic.Int64
	for range 4 * limit.Sandboxes {
		all.Go(func() {
			_, err := c.sandboxes.CreateSandbox(x.Context(), box("", 1))
			switch {
			case err == nil:
				served.Add(1)
			case connect.CodeOf(err) == connect.CodeResourceExhausted:
				refused.Add(1)
			default:
				x.Error(err)
			}
		})
	}
	all.Wait()
	if int(served.Load()) != limit.Sandboxes || int(refused.Load()) != 3*limit.Sandboxes {
		x.Errorf("%s got %d, and %d were refused; the quota is %d", tenant, served.Load(), refused.Load(),
			limit.Sandboxes)
	}
}

// giveUpNow ends creations that wait for their repetition.
func (x *exactness) giveUpNow() {
	was := x.o.Times.Abandon
	x.o.Times.Abandon = 0
	x.giveUp(x.Context())
	x.o.Times.Abandon = was
}

// TestRoomIsRemembered: a new controller counts the machines of the records before their node has
// registered, those of creations that no node has answered too.
func TestRoomIsRemembered(t *testing.T) {
	w := newWorld(t, "n1")
	n := w.nodes[0]
	n.capacity = &v1.Machine{Cpus: 4, Memory: 64 << 30, Disk: 1 << 40}
	w.registerNode(n)
	c := w.as(with("acme"))
	for i := range 2 {
		_, err := c.sandboxes.CreateSandbox(t.Context(), box(fmt.Sprint(i), 1))
		must(t, err)
	}
	n.mu.Lock()
	n.before = func(_ context.Context, method, _ string) error {
		if method != "CreateSandbox" {
			return nil
		}
		return api.ToConnect(turnstone.Errorf("node", turnstone.KindUnavailable, "the node", "ends"))
	}
	n.mu.Unlock()
	_, err := c.sandboxes.CreateSandbox(t.Context(), box("later", 1)) // it waits for its repetition
	w.fails(err, connect.CodeUnavailable)
	n.stop() // the next controller finds it silent
	w.stop()
	w.start()
	w.Controller.nodes.mu.Lock()
	defer w.Controller.nodes.mu.Unlock()
	held := w.Controller.nodes.fleet.Reserved("n1")
	if len(held) != 1 {
		t.Errorf("%d reservations", len(held))
	}
	machine := func(cpus uint32) error {
		room, err := w.Controller.nodes.fleet.Place(needOf(cpus))
		if err == nil {
			w.Controller.nodes.fleet.Drop(room)
		}
		return err
	}
	if err := machine(1); err != nil {
		t.Error("one fits:", err)
	}
	if err := machine(2); err == nil {
		t.Error("two do not fit beside three of four")
	}
}

func needOf(cpus uint32) placing.Need {
	return placing.Need{Tenant: "acme", Machine: &v1.Machine{Cpus: cpus, Memory: 1 << 20, Disk: 1 << 20}}
}
