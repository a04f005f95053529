package controller

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/controller/usage"
)

// limited starts a world whose tenants have limits, and returns a tenant's clients.
func limited(t *testing.T, l quota.Limits) (*world, *callerClient) {
	w := newWorld(t, "n1")
	w.stop()
	w.quota = func(string) quota.Limits { return l }
	w.start()
	w.join(w.nodes[0])
	return w, w.as(with("acme"))
}

func reserve(c *callerClient, w *world, key string, cpus uint32) (string, error) {
	r := &v1.StartTurnRequest{IdempotencyKey: key, Client: newClient()}
	if cpus > 0 {
		r.Machine = &v1.Machine{Cpus: cpus}
	}
	a, err := c.turns.StartTurn(w.Context(), ask(r))
	if err != nil {
		return "", err
	}
	return a.Msg.Turn.TicketId, nil
}

// TestQuotaOfTickets: turns that are reserved count, because all of them may begin at once; also
// after a restart, and until they end.
func TestQuotaOfTickets(t *testing.T) {
	w, c := limited(t, quota.Limits{CPUs: 4})
	first, err := reserve(c, w, "1", 3)
	must(t, err)
	_, err = reserve(c, w, "2", 2)
	w.fails(err, connect.CodeResourceExhausted)
	w.restart()
	c = w.as(with("acme"))
	_, err = reserve(c, w, "3", 2)
	w.fails(err, connect.CodeResourceExhausted)
	_, err = reserve(c, w, "1", 3) // a repetition wants nothing more
	if err != nil && connect.CodeOf(err) == connect.CodeResourceExhausted {
		t.Error(err)
	}
	w.nodes[0].finish(first)
	w.eventually("its end makes room", func() bool {
		_, err := reserve(c, w, "4", 2)
		return err == nil
	})
}

// TestQuotaOfTemplates: a machine whose size the request does not name counts with its template's,
// however many are asked for at one time.
func TestQuotaOfTemplates(t *testing.T) {
	w, _ := limited(t, quota.Limits{CPUs: 8})
	n := w.nodes[0] // which tells it in every list
	n.mu.Lock()
	n.templates["base"] = &v1.Template{Name: "base", Machine: &v1.Machine{Cpus: 4}}
	n.mu.Unlock()
	w.restart()
	c := w.as(with("acme"))
	var made atomic.Int64
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if i%2 == 0 {
				if _, err := reserve(c, w, fmt.Sprint(i), 0); err == nil {
					made.Add(1)
				}
			} else if _, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{
				IdempotencyKey: fmt.Sprint(i), Client: newClient()})); err == nil {
				made.Add(1)
			}
		})
	}
	all.Wait()
	if made.Load() != 2 {
		t.Errorf("%d machines of 4 CPUs, with a limit of 8", made.Load())
	}
}

// TestQuotaOfForks: clones count like sandboxes, all or none of a call.
func TestQuotaOfForks(t *testing.T) {
	w, c := limited(t, quota.Limits{Sandboxes: 3, CPUs: 5})
	id := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k",
		Machine: &v1.Machine{Cpus: 2}}).Sandbox.SandboxId
	fork := func(key string, n int) error {
		r := &v1.ForkSandboxRequest{SandboxId: id, IdempotencyKey: key}
		for range n {
			r.Clients = append(r.Clients, newClient())
		}
		_, err := c.sandboxes.ForkSandbox(t.Context(), ask(r))
		return err
	}
	w.fails(fork("1", 3), connect.CodeResourceExhausted) // sandboxes
	w.fails(fork("2", 2), connect.CodeResourceExhausted) // CPUs
	must(t, fork("3", 1))
	w.fails(fork("4", 2), connect.CodeResourceExhausted)
	must(t, fork("3", 1)) // a repetition
}

// TestQuotaOfBytes: beyond what a tenant may send in a day nothing new begins, also after a restart.
func TestQuotaOfBytes(t *testing.T) {
	w, c := limited(t, quota.Limits{Sent: 1000})
	id := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k"}).Sandbox.SandboxId
	w.nodes[0].uses(id, time.Second, 999)
	sent := func() uint64 { return w.Controller.ledger.Standing("acme").Sent }
	w.eventually("the report counts", func() bool { return sent() == 999 })
	must(t, w.flushUsage(t.Context()))
	w.restart()
	c, other := w.as(with("acme")), w.as(with("other"))
	if n := sent(); n > 999 || n < 998 { // a part of a span is rounded
		t.Errorf("%d bytes after a restart", n)
	}
	_, err := c.sandboxes.CreateSandbox(t.Context(), box("1", 1))
	must(t, err)
	w.nodes[0].uses(id, time.Second, 1100)
	w.eventually("the report counts", func() bool { return sent() >= 1000 })
	_, err = c.sandboxes.CreateSandbox(t.Context(), box("2", 1))
	w.fails(err, connect.CodeResourceExhausted)
	if !strings.Contains(err.Error(), "have sent 1") {
		t.Error(err)
	}
	_, err = reserve(c, w, "t", 1)
	w.fails(err, connect.CodeResourceExhausted)
	_, err = other.sandboxes.CreateSandbox(t.Context(), box("2", 1))
	must(t, err)
	_, err = c.sandboxes.CreateSandbox(t.Context(), box("1", 1)) // a repetition
	must(t, err)
}

// TestDays: a day begins at 00:00 UTC.
func TestDays(t *testing.T) {
	at := time.Date(2026, 11, 24, 23, 59, 59, 999, time.FixedZone("", -3600))
	if got := usage.Day(at); got.Format(time.RFC3339) != "2026-11-25T00:00:00Z" {
		t.Error(got)
	}
}
