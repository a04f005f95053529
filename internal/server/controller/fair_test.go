package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/testsize"
)

// box asks for a sandbox of a size.
func box(key string, cpus uint32) *connect.Request[v1.CreateSandboxRequest] {
	return ask(&v1.CreateSandboxRequest{IdempotencyKey: key, Client: newClient(),
		Machine: &v1.Machine{Cpus: cpus, Memory: 1 << 30, Disk: 1 << 30}})
}

// fill makes the node full, and returns what frees a place.
func (w *world) fill(n *fakeNode, c *callerClient, places int) (free func()) {
	w.Helper()
	var ids []string
	for i := range places {
		made, err := c.sandboxes.CreateSandbox(w.Context(), box(fmt.Sprint("fill", i), 1))
		must(w, err)
		ids = append(ids, made.Msg.Sandbox.SandboxId)
	}
	return func() {
		w.Helper()
		_, err := c.sandboxes.DeleteSandbox(w.Context(), ask(&v1.DeleteSandboxRequest{SandboxId: ids[0]}))
		must(w, err)
		ids = ids[1:]
		w.Controller.nodes.mu.Lock() // as after the time that a placement counts
		w.Controller.nodes.fleet.Drop(w.Controller.nodes.fleet.Reserved(n.name)[0])
		w.Controller.nodes.mu.Unlock()
		w.Controller.gate.Wake()
	}
}

// TestFairOrder: while one tenant's flood waits for a full node, another's creation is served
// second, whenever it comes; and what waits is served in the order of its tenant.
func TestFairOrder(t *testing.T) {
	w := newWorld(t, "n1")
	w.stop()
	w.waiting = fair.Limits{Wait: time.Hour}
	w.nodes[0].capacity = &v1.Machine{Cpus: 4, Memory: 64 << 30, Disk: 1 << 40}
	w.start()
	w.join(w.nodes[0])
	full := w.fill(w.nodes[0], w.as(with("filler")), 4)
	flood, quiet := w.as(with("flood")), w.as(with("quiet"))
	order := make(chan string, 10)
	var all sync.WaitGroup
	begin := func(c *callerClient, name string) {
		before := w.Controller.gate.Waiting()
		all.Go(func() {
			_, err := c.sandboxes.CreateSandbox(t.Context(), box(name, 1))
			if err != nil {
				t.Error(name, err)
			}
			order <- name
		})
		w.eventually(name+" waits", func() bool { return w.Controller.gate.Waiting() == before+1 })
	}
	for i := range 3 {
		begin(flood, fmt.Sprint("flood", i))
	}
	begin(quiet, "quiet")
	nodes, err := quiet.server.ListNodes(t.Context(), ask(&v1.ListNodesRequest{}))
	must(t, err)
	if nodes.Msg.Waiting != 4 {
		t.Errorf("the server says that %d wait", nodes.Msg.Waiting)
	}
	for _, want := range []string{"flood0", "quiet", "flood1", "flood2"} {
		full()
		if got := <-order; got != want {
			t.Errorf("%s was served, not %s", got, want)
		}
	}
	all.Wait()
}

// TestWaitingCalls: calls that wait for room or for a node are not worked on meanwhile. Others of
// the same tenant are answered, however many wait.
func TestWaitingCalls(t *testing.T) {
	w := newWorld(t, "n1")
	w.stop()
	w.waiting = fair.Limits{Wait: time.Hour}
	w.nodes[0].capacity = &v1.Machine{Cpus: 1, Memory: 64 << 30, Disk: 1 << 40}
	w.start()
	w.join(w.nodes[0])
	c := w.as(with("a"))
	w.fill(w.nodes[0], c, 1)
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	n := 4*runtime.GOMAXPROCS(0) + 4
	for i := range n {
		all.Go(func() {
			if _, err := c.sandboxes.CreateSandbox(ctx, box(fmt.Sprint("w", i), 1)); err == nil {
				t.Error("there was room")
			}
		})
	}
	w.eventually("all wait", func() bool { return w.Controller.gate.Waiting() == n })
	_, err := c.sandboxes.ListSandboxes(t.Context(), ask(&v1.ListSandboxesRequest{}))
	must(t, err)
	leave()
	all.Wait()
	w.eventually("none waits", func() bool { return w.Controller.gate.Waiting() == 0 })
}

// TestFloodOfCreations: of a flood of creations of one tenant those beyond its quota and the queue are
// refused with a clear error, another tenant is served meanwhile, and afterwards nothing is left.
func TestFloodOfCreations(t *testing.T) {
	w := newWorld(t, "n1")
	w.stop()
	w.waiting = fair.Limits{Each: 20, Wait: 50 * time.Millisecond}
	w.quota = func(tenant string) quota.Limits { return quota.Limits{Sandboxes: 10} }
	w.start()
	w.join(w.nodes[0])
	flood, quiet := w.as(with("flood")), w.as(with("quiet"))
	n := testsize.Of(1_000, 10_000)
	var made, limited, queued atomic.Int64
	var all sync.WaitGroup
	next := make(chan int)
	for range 50 {
		all.Go(func() {
			for i := range next {
				_, err := flood.sandboxes.CreateSandbox(t.Context(), box(fmt.Sprint(i), 1))
				switch text := fmt.Sprint(err); {
				case err == nil:
					made.Add(1)
				case strings.Contains(text, "the limit of its sandboxes is 10"):
					limited.Add(1)
				case strings.Contains(text, "wait for room") || strings.Contains(text, "fits on none"),
					strings.Contains(text, "has too much to do"):
					queued.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		if i%(n/5) == 0 {
			_, err := quiet.sandboxes.CreateSandbox(t.Context(), box(fmt.Sprint("q", i), 1))
			for err != nil && strings.Contains(err.Error(), "has too much to do") { // so does this machine
				_, err = quiet.sandboxes.CreateSandbox(t.Context(), box(fmt.Sprint("q", i), 1))
			}
			if err != nil {
				t.Errorf("the quiet tenant: %v", err)
			}
		}
		next <- i
	}
	close(next)
	all.Wait()
	if made.Load() != 10 || made.Load()+limited.Load()+queued.Load() != int64(n) {
		t.Errorf("%d made, %d beyond the quota, %d beyond the queue", made.Load(), limited.Load(),
			queued.Load())
	}
	if left := w.Controller.gate.Waiting(); left != 0 {
		t.Errorf("%d wait", left)
	}
}

// TestQuota: a sandbox that has ended makes room, one tenant's limits are not another's, and a
// restart changes nothing.
func TestQuota(t *testing.T) {
	w := newWorld(t, "n1")
	w.stop()
	w.quota = func(tenant string) quota.Limits {
		if tenant == "small" {
			return quota.Limits{CPUs: 3}
		}
		if tenant == "turns" {
			return quota.Limits{Turns: 2}
		}
		return quota.Limits{}
	}
	w.start()
	w.join(w.nodes[0])
	c := w.as(with("small"))
	first, err := c.sandboxes.CreateSandbox(t.Context(), box("1", 2))
	must(t, err)
	refused := func(err error) {
		t.Helper()
		w.fails(err, connect.CodeResourceExhausted)
		if !strings.Contains(err.Error(), "is 3, of which 2 are in use, and this wants 2") {
			t.Error(err)
		}
	}
	_, err = c.sandboxes.CreateSandbox(t.Context(), box("2", 2))
	refused(err)
	w.restart()
	c, other := w.as(with("small")), w.as(with("other"))
	_, err = c.sandboxes.CreateSandbox(t.Context(), box("3", 2))
	refused(err)
	_, err = other.sandboxes.CreateSandbox(t.Context(), box("1", 4))
	must(t, err)
	_, err = c.sandboxes.DeleteSandbox(t.Context(), ask(&v1.DeleteSandboxRequest{
		SandboxId: first.Msg.Sandbox.SandboxId}))
	must(t, err)
	_, err = c.sandboxes.CreateSandbox(t.Context(), box("4", 2))
	must(t, err)
	c = w.as(with("turns"))
	for i := range 3 {
		_, err = c.turns.StartTurn(t.Context(), ask(&v1.StartTurnRequest{IdempotencyKey: fmt.Sprint(i),
			Client: newClient(), Machine: &v1.Machine{Cpus: 1}}))
		if i < 2 {
			must(t, err)
		}
	}
	s := w.fails(err, connect.CodeResourceExhausted)
	if !strings.Contains(turnstone.HintOf(s), "raise turns") || s.RetryAfter == 0 {
		t.Errorf("%v %s", err, turnstone.HintOf(s))
	}
	again, err := c.turns.StartTurn(t.Context(), ask(&v1.StartTurnRequest{IdempotencyKey: "0",
		Client: newClient(), Machine: &v1.Machine{Cpus: 1}}))
	must(t, err) // a repetition is no new turn
	if again.Msg.Turn.GetTicketId() == "" {
		t.Error(errors.New("no ticket"))
	}
}
