package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/testsize"
)

// hook sets what runs around the node's calls.
func (n *fakeNode) hook(before, after func(ctx context.Context, method, id string) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.before, n.after = before, after
}

func unavailable() error {
	return api.ToConnect(turnstone.Errorf("node", turnstone.KindUnavailable, "node", "is busy"))
}

// TestOneKeyManyCalls: concurrent calls with one key make one object, and all get it.
func TestOneKeyManyCalls(t *testing.T) {
	w := newWorld(t, "a", "b")
	c := w.as(with("acme"))
	var busy sync.Map
	for _, n := range w.nodes {
		n.hook(func(_ context.Context, method, id string) error {
			if _, other := busy.LoadOrStore(method+id, true); other {
				t.Errorf("two calls make %s at the same time", id)
			}
			return nil
		}, func(_ context.Context, method, id string) error {
			busy.Delete(method + id)
			return nil
		})
	}
	for i := range 5 {
		key := fmt.Sprint("key", i)
		var mu sync.Mutex
		got := map[string]bool{}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				made, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{
					IdempotencyKey: key, Client: newClient()}))
				turn, err2 := c.turns.StartTurn(t.Context(), ask(&v1.StartTurnRequest{
					IdempotencyKey: key, Client: newClient()}))
				if err != nil || err2 != nil {
					t.Error(err, err2)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got[made.Msg.Sandbox.SandboxId], got[turn.Msg.Turn.TicketId] = true, true
				if made.Msg.Channel == nil || turn.Msg.Channel == nil || made.Msg.AuthToken == "" {
					t.Error("an answer has no channel or token")
				}
			})
		}
		wg.Wait()
		if len(got) != 2 {
			t.Fatalf("one key answers %v", got)
		}
	}
	for _, n := range w.nodes {
		if _, twice := n.count(""); len(twice) > 0 {
			t.Errorf("made twice: %v", twice)
		}
	}
	if a, b := len(w.nodes[0].has()), len(w.nodes[1].has()); a+b != 5 {
		t.Errorf("the nodes have %d and %d sandboxes", a, b)
	}
	asked := 0
	for _, n := range w.nodes {
		n.mu.Lock()
		asked += n.calls["CreateSandbox"]
		n.mu.Unlock()
	}
	if asked != 5 {
		t.Errorf("the nodes were asked %d times", asked)
	}
}

// TestKeyOfAnotherRequest: a key is of its tenant and its request.
func TestKeyOfAnotherRequest(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	first := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "one"})
	again := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "one"})
	if first.Sandbox.SandboxId != again.Sandbox.SandboxId ||
		string(first.Channel.Attestation) == string(again.Channel.Attestation) {
		t.Fatalf("%v\n%v", first, again)
	}
	_, err := c.sandboxes.CreateSandbox(t.Context(), ask(&v1.CreateSandboxRequest{
		IdempotencyKey: "k", Name: "two", Client: newClient()}))
	if s := w.fails(err, connect.CodeInvalidArgument); api.Retryable(s) {
		t.Error("a retry is said to help")
	}
	theirs := w.create(w.as(with("other")), &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "one"})
	if theirs.Sandbox.SandboxId == first.Sandbox.SandboxId {
		t.Fatal("two tenants share a key")
	}
	_, err = c.sandboxes.DeleteSandbox(t.Context(),
		ask(&v1.DeleteSandboxRequest{SandboxId: first.Sandbox.SandboxId}))
	must(t, err)
	ended := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k", Name: "one"})
	if ended.Sandbox.SandboxId != first.Sandbox.SandboxId || ended.AuthToken != "" ||
		ended.Sandbox.State != v1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Fatalf("the same request makes another sandbox after the end: %v", ended.Sandbox)
	}
}

// TestKeysOfAllCreations: each request with a key is repeated with its first answer.
func TestKeysOfAllCreations(t *testing.T) {
	w := newWorld(t, "a")
	c := w.as(with("acme"))
	ctx := t.Context()
	id := w.create(c, &v1.CreateSandboxRequest{}).Sandbox.SandboxId
	clients := func() []*v1.ChannelClient { return []*v1.ChannelClient{newClient(), newClient()} }
	for name, f := range map[string]func() (string, error){
		"fork": func() (string, error) {
			m, err := c.sandboxes.ForkSandbox(ctx, ask(&v1.ForkSandboxRequest{SandboxId: id,
				IdempotencyKey: "k", Clients: clients()}))
			if err != nil {
				return "", err
			}
			return m.Msg.Clones[0].Sandbox.SandboxId + m.Msg.Clones[1].Sandbox.SandboxId, nil
		},
		"snapshot": func() (string, error) {
			m, err := c.sandboxes.SnapshotSandbox(ctx, ask(&v1.SnapshotSandboxRequest{
				SandboxId: id, IdempotencyKey: "k"}))
			if err != nil {
				return "", err
			}
			return m.Msg.Snapshot.SnapshotId, nil
		},
		"session": func() (string, error) {
			m, err := c.sessions.CreateSession(ctx, ask(&v1.CreateSessionRequest{
				IdempotencyKey: "k", Name: "research", Client: newClient()}))
			if err != nil {
				return "", err
			}
			return m.Msg.Session.SessionId, nil
		},
		"turn": func() (string, error) {
			m, err := c.turns.StartTurn(ctx, ask(&v1.StartTurnRequest{
				IdempotencyKey: "k", Client: newClient(), Timeout: durationpb.New(time.Hour)}))
			if err != nil {
				return "", err
			}
			return m.Msg.Turn.TicketId, nil
		},
	} {
		// The first answer is lost on its way, the second is not.
		w.nodes[0].hook(nil, func(context.Context, string, string) error { return unavailable() })
		_, err := f()
		if s := w.fails(err, connect.CodeUnavailable); !api.Retryable(s) || api.RetryAfter(s) == 0 {
			t.Errorf("%s: a retry is not said to help: %v", name, s)
		}
		w.nodes[0].hook(nil, nil)
		a, err := f()
		must(t, err)
		b, err := f()
		must(t, err)
		if a != b || a == "" {
			t.Errorf("%s: %s, then %s", name, a, b)
		}
	}
	if _, twice := w.nodes[0].count(""); len(twice) > 0 {
		t.Errorf("made twice: %v", twice)
	}
	n := w.nodes[0]
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.sandboxes) != 3 || len(n.snapshots) != 1 || len(n.sessions) != 1 || len(n.turns) != 1 {
		t.Errorf("the node has %d sandboxes, %d snapshots, %d sessions and %d turns",
			len(n.sandboxes), len(n.snapshots), len(n.sessions), len(n.turns))
	}
}

// TestPropertyOneKeyRunsOnce: whatever fails and restarts between repetitions of requests, one key
// makes at most one object, and answers it only.
func TestPropertyOneKeyRunsOnce(t *testing.T) {
	testsize.Checks(t, 30)
	w := newWorld(t, "a", "b")
	var run atomic.Int64
	rapid.Check(t, func(r *rapid.T) {
		prefix := fmt.Sprint("run", run.Add(1), "-")
		c := w.as(with("acme"))
		answers := map[string]map[string]bool{}
		var mu sync.Mutex
		var calls atomic.Int64
		plan := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 40).Draw(r, "faults")
		fault := func(at int) func(context.Context, string, string) error {
			return func(ctx context.Context, method, id string) error {
				switch k := plan[int(calls.Add(1))%len(plan)]; {
				case k == at:
					return unavailable()
				case k == at+2:
					return errors.New("a fault that no code explains")
				}
				return nil
			}
		}
		for _, n := range w.nodes {
			n.hook(fault(0), fault(1))
		}
		for i, step := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 6).Draw(r, "steps") {
			switch step {
			case 9:
				for _, n := range w.nodes {
					n.hook(nil, nil)
				}
				w.restart()
				for _, n := range w.nodes {
					n.hook(fault(0), fault(1))
				}
				c = w.as(with("acme"))
			default:
				key := fmt.Sprint(prefix, step%3)
				var wg sync.WaitGroup
				for range 1 + i%3 {
					wg.Go(func() {
						id := w.try(c, key, step)
						mu.Lock()
						defer mu.Unlock()
						kind := fmt.Sprint(key, step < 4)
						if answers[kind] == nil {
							answers[kind] = map[string]bool{}
						}
						if id != "" {
							answers[kind][id] = true
						}
					})
				}
				wg.Wait()
			}
		}
		for key, ids := range answers {
			if len(ids) > 1 {
				r.Fatalf("%s answers %v", key, ids)
			}
		}
		for _, n := range w.nodes {
			if _, twice := n.count(""); len(twice) > 0 {
				r.Fatalf("made twice: %v", twice)
			}
		}
		// A key has one object, in the records and at the nodes.
		for k := range 3 {
			key := fmt.Sprint(prefix, k)
			for _, f := range []records.Filter{{Kind: records.Sandbox, Name: key},
				{Kind: records.Turn, Session: "s" + key}} {
				all, _, err := w.store.List(t.Context(), "acme", f, records.Page{})
				must(t, err)
				if len(all) > 1 {
					r.Fatalf("%s has %d records", key, len(all))
				}
			}
			made := 0
			for _, n := range w.nodes {
				made += n.named(key)
			}
			if made > 1 {
				r.Fatalf("the nodes have %d sandboxes of %s", made, key)
			}
		}
	})
}

// try makes a request with a key, and returns the ID that it answers.
func (w *world) try(c *callerClient, key string, step int) string {
	if step < 4 {
		m, err := c.sandboxes.CreateSandbox(w.Context(), ask(&v1.CreateSandboxRequest{
			IdempotencyKey: key, Name: key, Client: newClient()}))
		if err != nil {
			return ""
		}
		return m.Msg.Sandbox.SandboxId
	}
	m, err := c.turns.StartTurn(w.Context(), ask(&v1.StartTurnRequest{IdempotencyKey: key,
		Session: "s" + key, Client: newClient()}))
	if err != nil {
		return ""
	}
	return m.Msg.Turn.TicketId
}

// named counts the sandboxes with a name.
func (n *fakeNode) named(name string) (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.sandboxes {
		if x.Sandbox.Name == name {
			all++
		}
	}
	return all
}
