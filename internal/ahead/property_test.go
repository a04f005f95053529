package ahead_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/ahead"
)

// TestProperties performs random operations, and verifies after each that no machine is given to two
// turns or to another's, that none is closed while a turn has it, and that the bounds hold. At the end
// all machines are closed that no turn has.
func TestProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { rapid.Check(inBubble{t}, property) })
}

// inBubble hides the method Deadline of a test, which a bubble does not permit.
type inBubble struct{ testing.TB }

type owned struct {
	*machine
	by string
}

type run struct {
	s      *ahead.Shelf
	turns  int
	memory turnstone.Bytes

	mu    sync.Mutex
	all   []*owned
	taken map[*owned]bool
}

func property(t *rapid.T) {
	r := &run{turns: rapid.IntRange(1, 4).Draw(t, "turns"), taken: make(map[*owned]bool),
		memory: turnstone.Bytes(rapid.IntRange(0, 5).Draw(t, "memory")) * gib}
	r.s = ahead.New(ahead.Options{Turns: r.turns, Memory: r.memory,
		Makers: rapid.IntRange(1, 3).Draw(t, "makers")})
	clients, sessions := rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"r", "s"})
	branches, states := rapid.SampledFrom([]string{"main", "side"}), rapid.SampledFrom([]string{"1", "2"})
	t.Repeat(map[string]func(*rapid.T){
		"offer": func(t *rapid.T) {
			m := &owned{&machine{key: key(sessions.Draw(t, "session"), states.Draw(t, "state"))},
				clients.Draw(t, "client")}
			r.offer(m, branches.Draw(t, "branch"), rapid.IntRange(0, 3).Draw(t, "seconds"),
				rapid.IntRange(0, 5).Draw(t, "fails") == 0)
		},
		"take": func(t *rapid.T) {
			r.take(t, clients.Draw(t, "client"), branches.Draw(t, "branch"),
				key(sessions.Draw(t, "session"), states.Draw(t, "state")))
		},
		"break": func(t *rapid.T) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.all) > 0 {
				err := error(turnstone.Errorf("x", turnstone.KindDead, "", "broken"))
				rapid.SampledFrom(r.all).Draw(t, "machine").broken.Store(&err)
			}
		},
		"yield": func(t *rapid.T) { r.s.Yield(turnstone.Bytes(rapid.IntRange(0, 3).Draw(t, "gib")) * gib) },
		"wait":  func(t *rapid.T) { time.Sleep(time.Duration(rapid.IntRange(0, 700).Draw(t, "s")) * time.Second) },
		"":      r.verify,
	})
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	r.verify(t)
	for _, m := range r.all {
		if n := m.closed.Load(); n != 1 && !r.taken[m] {
			t.Fatalf("a machine that nobody has was closed %d times", n)
		}
	}
}

func (r *run) offer(m *owned, branch string, seconds int, fails bool) {
	r.s.For("local", m.by).Offer(ahead.Offer{Key: m.key, Branch: branch,
		Machine: turnstone.Machine{Memory: gib}, Make: func(ctx context.Context) (ahead.Machine, error) {
			time.Sleep(time.Duration(seconds) * time.Second) // whatever ctx says
			if fails {
				return nil, errors.New("no disk")
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.all = append(r.all, m)
			return m, nil
		}})
}

func (r *run) take(t *rapid.T, client, branch string, k ahead.Key) {
	got := r.s.For("local", client).Take(context.Background(), branch, k)
	if got == nil {
		return
	}
	m := got.(*owned)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken[m] || m.key != k || m.by != client {
		t.Fatalf("a turn of %s for %v got the machine of %s for %v, given away before: %t", client, k,
			m.by, m.key, r.taken[m])
	}
	r.taken[m] = true
}

func (r *run) verify(t *rapid.T) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.taken {
		if m.closed.Load() != 0 {
			t.Fatal("a machine was closed that a turn has")
		}
	}
	st := r.s.Stats()
	if st.Ready+st.Making > r.turns || r.memory > 0 && st.Memory > r.memory ||
		st.Memory != turnstone.Bytes(st.Ready+st.Making)*gib {
		t.Fatal(fmt.Sprintf("%+v", st))
	}
}
