package lease

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func pool(t testing.TB, s *pgtest.Server, schema string) *sql.DB {
	t.Helper()
	db, err := pg.Open(t.Context(), s.URL, schema)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// A clock is that of a database and of one machine, which tests advance.
type clock struct {
	mu      sync.Mutex
	machine time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine = c.machine.Add(d)
}

// machine is a holder whose clock and renewals the test controls.
func machine(t testing.TB, db *sql.DB, life time.Duration) (*Rows, *clock) {
	t.Helper()
	r, err := openRows(t.Context(), db, life)
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{machine: time.Now()}
	r.now, r.clock = "(SELECT now FROM clock)", c.now
	return r, c
}

func exec(t interface{ Fatal(args ...any) }, db *sql.DB, text string, args ...any) {
	if _, err := db.Exec(text, args...); err != nil {
		t.Fatal(err)
	}
}

// check is the check of a transaction that a lease permits.
func check(ctx context.Context, db *sql.DB, l Lease) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := l.Check(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// TestRows plays machines that take, renew, release and lose leases, fall asleep and come back, against
// a model. Of all that believe to have a lease, whatever their clocks say, one may write; and its fence
// is greater than all before.
func TestRows(t *testing.T) {
	s := pgtest.Shared(t)
	db := pool(t, s, s.Schema("rows"))
	if _, err := openRows(t.Context(), db, 0); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "CREATE TABLE clock (now TIMESTAMPTZ); INSERT INTO clock VALUES ('2026-01-01')")
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		// each has hundreds of statements
		if err := flag.Set("rapid.checks", "30"); err != nil {
			t.Fatal(err)
		}
	}
	const life = time.Minute
	names := []string{"a", "b"}
	rapid.Check(t, func(rt *rapid.T) {
		exec(rt, db, "DELETE FROM leases")
		type held struct {
			Lease
			machine int
			fence   int64
		}
		const machines = 3
		var all [machines]*Rows
		var clocks [machines]*clock
		for i := range all {
			all[i], clocks[i] = machine(t, db, life)
		}
		ends := map[string]time.Duration{} // by the database's clock
		owner := map[string]*held{}        // the last to have taken a lease
		var ever []*held
		var now time.Duration
		last := int64(0)
		name := rapid.SampledFrom(names)
		which := rapid.IntRange(0, machines-1)
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				n, m := name.Draw(rt, "name"), which.Draw(rt, "machine")
				mine := all[m].held[n] != nil
				l, err := all[m].Take(t.Context(), n, "")
				if err != nil {
					rt.Fatal(err)
				}
				// A lease that has ended is free, except for a machine that has not noticed its end.
				if free := owner[n] == nil || now >= ends[n]; (l != nil) != (free && !mine) {
					rt.Fatalf("machine %d got %s: %v; free: %v", m, n, l != nil, free)
				}
				if l == nil {
					return
				}
				h := &held{l, m, l.(*row).fence}
				if h.fence <= last {
					rt.Fatalf("fence %d after %d", h.fence, last)
				}
				last, owner[n], ends[n] = h.fence, h, now+life
				ever = append(ever, h)
			},
			"renew": func(rt *rapid.T) {
				m := which.Draw(rt, "machine")
				if err := all[m].renew(t.Context()); err != nil {
					rt.Fatal(err)
				}
				for n, h := range owner {
					if h != nil && h.machine == m {
						ends[n] = now + life
					}
				}
			},
			"release": func(rt *rapid.T) {
				if len(ever) == 0 {
					return
				}
				h := rapid.SampledFrom(ever).Draw(rt, "lease")
				h.Release()
				for n, o := range owner {
					if o == h {
						owner[n] = nil
					}
				}
				ever = slices.DeleteFunc(ever, func(o *held) bool { return o == h })
			},
			"time": func(rt *rapid.T) { // machines that are asleep do not see it
				d := time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second
				now += d
				exec(rt, db, "UPDATE clock SET now = now + make_interval(secs => $1)", d.Seconds())
				for i := range clocks {
					if rapid.Bool().Draw(rt, fmt.Sprintf("machine %d is awake", i)) {
						clocks[i].advance(d)
					}
				}
			},
			"": func(rt *rapid.T) {
				for _, h := range ever {
					n := h.Lease.(*row).name
					err := check(t.Context(), db, h)
					if may := owner[n] == h; (err == nil) != may ||
						err != nil && (turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "") {
						rt.Fatalf("machine %d with fence %d of %s: %v; it is the holder: %v", h.machine, h.fence, n, err, may)
					}
				}
			},
		})
		for _, r := range all {
			r.Close()
		}
	})
}

// TestStopsBeforeItsEnd: a holder that cannot renew stops its work before another can take the lease,
// by its own clock.
func TestStopsBeforeItsEnd(t *testing.T) {
	s := pgtest.Shared(t)
	db := pool(t, s, s.Schema("stops"))
	r, c := machine(t, db, time.Minute)
	exec(t, db, "CREATE TABLE clock (now TIMESTAMPTZ); INSERT INTO clock VALUES ('2026-01-01')")
	l, err := r.Take(t.Context(), "a", "")
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	ctx, release := Context(t.Context(), l)
	defer release()
	row := l.(*row)
	for _, step := range []struct {
		after time.Duration
		lost  bool
	}{{49 * time.Second, false}, {time.Second, true}} {
		c.advance(step.after)
		r.mu.Lock()
		r.expire(row)
		r.mu.Unlock()
		select {
		case <-l.Lost():
			if !step.lost {
				t.Fatalf("it is lost at once: %v", l.Cause())
			}
		default:
			if step.lost {
				t.Fatal("it works on until another machine may begin")
			}
		}
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); turnstone.KindOf(cause) != turnstone.KindUnavailable ||
		turnstone.HintOf(cause) == "" {
		t.Errorf("%v", cause)
	}
	// Nobody has taken it, so the end of the work may still be stored.
	if err := check(t.Context(), db, l); err != nil {
		t.Error(err)
	}
	exec(t, db, "UPDATE clock SET now = now + interval '1 minute'")
	other, _ := machine(t, db, time.Minute)
	taken, err := other.Take(t.Context(), "a", "")
	if err != nil || taken == nil {
		t.Fatal(taken, err)
	}
	if err := check(t.Context(), db, l); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("the sleeper writes: %v", err)
	}
	l.Release() // and its release is not that of the other
	if _, held, err := r.Holder(t.Context(), "a"); err != nil || !held {
		t.Errorf("%v, %v", held, err)
	}
	taken.Release()
}

// TestRenews: leases are renewed while their holder lives, and free when it has closed them; a database
// that is away for a moment costs none.
func TestRenews(t *testing.T) {
	s := pgtest.New(t, "fsync=off")
	db, other := pool(t, s, "leases"), pool(t, s, "leases")
	const life = 30 * time.Second
	r, err := OpenRows(t.Context(), db, life)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.Take(t.Context(), "a", "a note")
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	expires := func(name string) (at time.Time) {
		err := pg.Retry(t.Context(), time.Minute, func() error {
			return other.QueryRow("SELECT expires FROM leases WHERE name = $1", name).Scan(&at)
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for first := expires("a"); !expires("a").After(first); {
		select {
		case <-l.Lost():
			t.Fatal(l.Cause())
		case <-time.After(50 * time.Millisecond): //wait: the loop polls
		}
	}
	r.Close()
	if l, err := r.Take(t.Context(), "b", ""); l != nil || err != nil {
		t.Errorf("closed: %v, %v", l, err)
	}
	// a lease that a slow start of the database does not outlast
	if r, err = OpenRows(t.Context(), db, time.Hour); err != nil {
		t.Fatal(err)
	}
	if l, err = r.Take(t.Context(), "c", "a note"); err != nil || l == nil {
		t.Fatal(l, err)
	}
	first := expires("c")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := r.renew(t.Context()); !pg.Away(err) {
		t.Errorf("renewed without a database: %v", err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := pg.Retry(t.Context(), time.Minute, func() error { return r.renew(t.Context()) }); err != nil ||
		!expires("c").After(first) || l.Cause() != nil {
		t.Errorf("%v, %v", err, l.Cause())
	}
	second, err := OpenRows(t.Context(), other, life)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	var waitsFor string
	got := make(chan error)
	waiting := make(chan struct{})
	go func() {
		l, err := second.Wait(t.Context(), "c", "", func(note string) {
			waitsFor = note
			close(waiting)
		})
		if err == nil && l == nil {
			err = fmt.Errorf("no lease")
		}
		got <- err
	}()
	<-waiting
	r.Close()
	if err := <-got; err != nil || waitsFor != "a note" {
		t.Errorf("%v, %q", err, waitsFor)
	}
}

// TestSweepRows: what is left of leases is removed, and no lease.
func TestSweepRows(t *testing.T) {
	s := pgtest.Shared(t)
	db := pool(t, s, s.Schema("sweep"))
	r, err := OpenRows(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, name := range []string{"held", "left", "forsaken", "other"} {
		if l, err := r.Take(t.Context(), name, ""); l == nil || err != nil {
			t.Fatal(l, err)
		}
	}
	exec(t, db, "UPDATE leases SET expires = '-infinity' WHERE name <> 'held'")
	for _, name := range []string{"forsaken", "held", "none"} {
		if err := r.Forsake(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	n, err := r.Sweep(t.Context(), func(name string) bool { return name != "other" })
	if n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	var left string
	if err := db.QueryRow("SELECT string_agg(name, ' ' ORDER BY name) FROM leases").Scan(&left); err != nil ||
		left != "held other" {
		t.Errorf("%s, %v", left, err)
	}
}

// TestLostLease: a database loses the row of a lease, because a standby without the newest transactions
// became the primary, and gives its fence to another machine. Both believe to have the lease; one may
// write, and the other learns of it.
func TestLostLease(t *testing.T) {
	s := pgtest.New(t, "fsync=off")
	schema := "lost"
	if _, err := openRows(t.Context(), pool(t, s, schema), Life); err != nil { // makes the tables
		t.Fatal(err)
	}
	goBack, err := s.Remember()
	if err != nil {
		t.Fatal(err)
	}
	again := func() (db *sql.DB, r *Rows) {
		db = pool(t, s, schema)
		if r, err = openRows(t.Context(), db, Life); err != nil {
			t.Fatal(err)
		}
		return db, r
	}
	_, one := again()
	lost, err := one.Take(t.Context(), "turn", "")
	if err != nil || lost == nil {
		t.Fatal(lost, err)
	}
	if err := goBack(); err != nil {
		t.Fatal(err)
	}
	db, two := again()
	next, err := two.Take(t.Context(), "turn", "")
	if err != nil || next == nil {
		t.Fatal(next, err)
	}
	if a, b := lost.(*row).fence, next.(*row).fence; a != b {
		t.Logf("the fences %d and %d differ: the database kept the sequence", a, b)
	}
	one.pool = db
	if err := check(t.Context(), db, lost); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a lost lease permits a write: %v", err)
	}
	if err := one.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lost.Cause() == nil {
		t.Error("its holder does not learn of it")
	}
	lost.Release()
	if err := check(t.Context(), db, next); err != nil {
		t.Errorf("the end of a lost lease has ended the other's: %v", err)
	}
}
