package ahead_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/ahead"
)

// A machine counts its ends.
type machine struct {
	key    ahead.Key
	closed atomic.Int32
	broken atomic.Pointer[error]
}

func (m *machine) Check(context.Context) error {
	if err := m.broken.Load(); err != nil {
		return *err
	}
	return nil
}

func (m *machine) Close() error {
	m.closed.Add(1)
	return nil
}

func key(session, state string) ahead.Key {
	return ahead.Key{Session: turnstone.SessionID(session), State: turnstone.Digest(state), Kind: "k"}
}

const gib = 1 << 30

// offer offers a machine for k that takes a second to make.
func offer(c *ahead.Client, branch string, k ahead.Key) *machine {
	m := &machine{key: k}
	c.Offer(ahead.Offer{Key: k, Branch: branch, Machine: turnstone.Machine{Memory: gib},
		Make: func(ctx context.Context) (ahead.Machine, error) {
			select {
			case <-time.After(time.Second): //wait: the bubble's clock
				return m, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
	return m
}

// bubble runs f under a fake clock, with a shelf that is closed afterwards.
func bubble(t *testing.T, o ahead.Options, f func(t *testing.T, s *ahead.Shelf)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := ahead.New(o)
		f(t, s)
		if err := s.Close(); err != nil || s.Memory() != 0 {
			t.Error(err, s.Memory())
		}
	})
}

func TestOnce(t *testing.T) {
	bubble(t, ahead.Options{Turns: 4}, func(t *testing.T, s *ahead.Shelf) {
		c := s.For("local", "a")
		m := offer(c, "main", key("s", "1"))
		time.Sleep(2 * time.Second) //wait: the bubble's clock
		if got := c.Take(t.Context(), "main", key("s", "1")); got != m {
			t.Fatal("not the machine that waits:", got)
		}
		if got := c.Take(t.Context(), "main", key("s", "1")); got != nil {
			t.Error("taken twice:", got)
		}
		if n := m.closed.Load(); n != 0 {
			t.Error("closed, and in use")
		}
		if st := s.Stats(); st.Hits != 1 || st.Misses != 1 || st.Memory != 0 || st.Ready != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestOthers: a machine is that of one tenant, client, session, state and kind.
func TestOthers(t *testing.T) {
	bubble(t, ahead.Options{Turns: 8}, func(t *testing.T, s *ahead.Shelf) {
		m := offer(s.For("local", "a"), "main", key("s", "1"))
		time.Sleep(2 * time.Second) //wait: the bubble's clock
		other := key("s", "1")
		other.Kind = "another"
		for what, got := range map[string]ahead.Machine{
			"tenant":  s.For("other", "a").Take(t.Context(), "main", key("s", "1")),
			"session": s.For("local", "a").Take(t.Context(), "main", key("t", "1")),
		} {
			if got != nil {
				t.Error("another", what, "got it")
			}
		}
		if got := s.For("local", "a").Take(t.Context(), "main", other); got != nil {
			t.Error("another kind got it")
		}
		synctest.Wait()
		if m.closed.Load() != 1 {
			t.Error("it waits on, although the branch's turn needs another kind")
		}
		m = offer(s.For("local", "a"), "main", key("s", "2"))
		time.Sleep(2 * time.Second) //wait: the bubble's clock
		if got := s.For("local", "b").Take(t.Context(), "main", key("s", "2")); got != nil {
			t.Error("another client got it")
		}
		synctest.Wait()
		if m.closed.Load() != 1 {
			t.Error("it waits on, although another client's turn moves the branch")
		}
	})
}

func TestReplaced(t *testing.T) {
	bubble(t, ahead.Options{Turns: 8}, func(t *testing.T, s *ahead.Shelf) {
		c := s.For("local", "a")
		first, side := offer(c, "main", key("s", "1")), offer(c, "side", key("s", "1"))
		time.Sleep(3 * time.Second) //wait: the bubble's clock
		second := offer(s.For("local", "b"), "main", key("s", "2"))
		time.Sleep(3 * time.Second) //wait: the bubble's clock
		if first.closed.Load() != 1 || side.closed.Load() != 0 || second.closed.Load() != 0 {
			t.Error(first.closed.Load(), side.closed.Load(), second.closed.Load())
		}
		if st := s.Stats(); st.Changed != 1 || st.Ready != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// TestWaits: a turn waits for a machine that is being made, and not for one whose making has not begun.
func TestWaits(t *testing.T) {
	bubble(t, ahead.Options{Turns: 4, Makers: 1}, func(t *testing.T, s *ahead.Shelf) {
		c := s.For("local", "a")
		m := offer(c, "main", key("s", "1"))
		synctest.Wait()
		later := offer(c, "main", key("t", "1"))
		synctest.Wait()
		began := time.Now()
		if got := c.Take(t.Context(), "main", key("t", "1")); got != nil || time.Since(began) != 0 {
			t.Error("it waited for a machine that is not being made:", got, time.Since(began))
		}
		if got := c.Take(t.Context(), "main", key("s", "1")); got != m || time.Since(began) != time.Second {
			t.Error(got, time.Since(began))
		}
		time.Sleep(3 * time.Second) //wait: the bubble's clock
		if later.closed.Load() != 0 || s.Stats().Made != 1 {
			t.Error("a machine was made that nobody wants")
		}
	})
}

// TestGivesUp: a turn whose caller has given up leaves no machine.
func TestGivesUp(t *testing.T) {
	bubble(t, ahead.Options{Turns: 4}, func(t *testing.T, s *ahead.Shelf) {
		c := s.For("local", "a")
		offer(c, "main", key("s", "1"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) //wait: the bubble's clock
		defer cancel()
		if got := c.Take(ctx, "main", key("s", "1")); got != nil {
			t.Error(got)
		}
		if st := s.Stats(); st.Memory != 0 || st.Misses != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestHangs: a machine whose making does not end keeps neither its turn nor the machines of others for
// long.
func TestHangs(t *testing.T) {
	bubble(t, ahead.Options{Turns: 4, Makers: 1}, func(t *testing.T, s *ahead.Shelf) {
		a, b := s.For("one", "a"), s.For("other", "b")
		hang := func(branch string) {
			a.Offer(ahead.Offer{Key: key("s", branch), Branch: branch,
				Make: func(ctx context.Context) (ahead.Machine, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}})
			synctest.Wait()
		}
		hang("main")
		began := time.Now()
		if got := a.Take(t.Context(), "main", key("s", "main")); got != nil ||
			time.Since(began) > 10*time.Second {
			t.Error("its turn waited:", got, time.Since(began))
		}
		hang("side")
		m := offer(b, "main", key("t", "1"))
		time.Sleep(2 * time.Minute)
		if got := b.Take(t.Context(), "main", key("t", "1")); got != m || s.Stats().Failed != 1 {
			t.Error("no machine of another was made:", got, s.Stats())
		}
	})
}

func TestBounds(t *testing.T) {
	bubble(t, ahead.Options{Turns: 2, Memory: 3 * gib, Makers: 4}, func(t *testing.T, s *ahead.Shelf) {
		c := s.For("local", "a")
		var all []*machine
		for _, session := range []string{"r", "s", "t"} {
			all = append(all, offer(c, "main", key(session, "1")))
			time.Sleep(2 * time.Second)
		}
		if st := s.Stats(); st.Ready != 2 || st.Memory != 2*gib || st.Evicted != 1 ||
			all[0].closed.Load() != 1 {
			t.Errorf("%+v", st)
		}
		if freed := s.Yield(gib / 2); freed != gib {
			t.Error(freed)
		}
		synctest.Wait()
		if all[1].closed.Load() != 1 || all[2].closed.Load() != 0 {
			t.Error("not the one that was used least recently")
		}
		c.Offer(ahead.Offer{Key: key("u", "1"), Machine: turnstone.Machine{Memory: 4 * gib}})
		if st := s.Stats(); st.Memory != gib {
			t.Errorf("a machine larger than the shelf: %+v", st)
		}
	})
}

func TestNoRoom(t *testing.T) {
	bubble(t, ahead.Options{Turns: 2}, func(t *testing.T, s *ahead.Shelf) {
		s.Within(func(m turnstone.Machine, waiting turnstone.Bytes) bool {
			return s.Memory()+waiting < 0 // it may ask the shelf
		})
		offer(s.For("local", "a"), "main", key("s", "1"))
		synctest.Wait()
		if st := s.Stats(); st.Memory != 0 || st.Evicted != 1 || st.Made != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestLooks(t *testing.T) {
	bubble(t, ahead.Options{Turns: 4, Makers: 4}, func(t *testing.T, s *ahead.Shelf) {
		c := s.For("local", "a")
		dead, stale, idle := offer(c, "main", key("r", "1")), offer(c, "main", key("s", "1")),
			offer(c, "main", key("t", "1"))
		time.Sleep(2 * time.Second) //wait: the bubble's clock
		gone := error(turnstone.Errorf("x", turnstone.KindDead, "", "it has ended"))
		other := errors.New("the template is another")
		dead.broken.Store(&gone)
		stale.broken.Store(&other)
		time.Sleep(4 * time.Second) //wait: the bubble's clock
		if dead.closed.Load() != 1 || stale.closed.Load() != 1 || idle.closed.Load() != 0 {
			t.Error(dead.closed.Load(), stale.closed.Load(), idle.closed.Load())
		}
		time.Sleep(10 * time.Minute)
		if st := s.Stats(); idle.closed.Load() != 1 || st.Idle != 1 || st.Died != 1 || st.Changed != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestFails(t *testing.T) {
	var failed error
	bubble(t, ahead.Options{Turns: 4, Failed: func(_ string, err error) { failed = err }},
		func(t *testing.T, s *ahead.Shelf) {
			want := errors.New("no disk")
			s.For("local", "a").Offer(ahead.Offer{Key: key("s", "1"),
				Make: func(context.Context) (ahead.Machine, error) { return nil, want }})
			synctest.Wait()
			if got := s.For("local", "a").Take(t.Context(), "", key("s", "1")); got != nil ||
				!errors.Is(failed, want) || s.Stats().Failed != 1 {
				t.Error(got, failed, s.Stats())
			}
		})
}

// TestNone: without a shelf nothing waits.
func TestNone(t *testing.T) {
	s := ahead.New(ahead.Options{})
	ctx := ahead.NewContext(t.Context(), s.For("local", "a"))
	c := ahead.From(ctx)
	c.Offer(ahead.Offer{Key: key("s", "1")})
	c.Lost()
	if c != nil || c.Take(ctx, "main", key("s", "1")) != nil || s.Yield(1) != 0 || s.Memory() != 0 ||
		s.Stats() != (ahead.Stats{}) || s.Close() != nil {
		t.Error("there is one")
	}
}
