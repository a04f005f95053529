package records_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/server/records/recordstest"
)

// long is a lease that does not end within a test.
const long = time.Hour

// lease opens the lease of a new schema.
func lease(t *testing.T) (l *records.Lease, schema string) {
	t.Helper()
	s := pgtest.Shared(t)
	schema = s.Schema(t.Name())
	l, err := records.OpenLease(t.Context(), s.URL, records.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, schema
}

// TestLease: one of many controllers begins a term, and the next one begins when it has ended.
func TestLease(t *testing.T) {
	l, _ := lease(t)
	var mu sync.Mutex
	var won []records.Term
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			term, taken, err := l.Take(t.Context(), "a", "at", long)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			} else if taken {
				won = append(won, term)
			} else if term.Holder != "a" || term.Address != "at" || term.Left <= 0 {
				t.Errorf("another sees %+v", term)
			}
		})
	}
	all.Wait()
	if len(won) != 1 {
		t.Fatalf("%d terms began", len(won))
	}
	first := won[0].Fence
	if ok, err := l.Renew(t.Context(), first, long); err != nil || !ok {
		t.Errorf("renewed %v: %v", ok, err)
	}
	if err := l.SetKey(t.Context(), first, "k"); err != nil {
		t.Error(err)
	}
	if err := l.End(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	next, taken, err := l.Take(t.Context(), "b", "", long)
	if err != nil || !taken || next.Fence <= first {
		t.Fatalf("the next term %+v, %v: %v", next, taken, err)
	}
	if key, err := l.Key(t.Context()); err != nil || key != "k" {
		t.Errorf("the key %q: %v", key, err)
	}
	// the first one wakes up
	if ok, err := l.Renew(t.Context(), first, long); err != nil || ok {
		t.Errorf("an earlier term is renewed: %v", err)
	}
	if err := l.SetKey(t.Context(), first, "old"); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("an earlier term sets its key: %v", err)
	}
	if err := l.End(t.Context(), first); err != nil {
		t.Error(err)
	}
	if _, taken, err := l.Take(t.Context(), "c", "", long); err != nil || taken {
		t.Errorf("an earlier term ended a later one: %v", err)
	}
}

// TestFence: after a new term has begun, the writes of an earlier one are refused.
func TestFence(t *testing.T) {
	l, schema := lease(t)
	c := recordstest.NewClock()
	lead := func(life time.Duration) *records.DB {
		t.Helper()
		for {
			term, taken, err := l.Take(t.Context(), "a", "", life)
			if err != nil {
				t.Fatal(err)
			}
			if taken {
				db := openPostgres(t, c, records.Options{Schema: schema, Fence: term.Fence})
				t.Cleanup(func() { _ = db.Close() })
				return db
			}
		}
	}
	old := lead(time.Millisecond)
	o := object()
	if _, _, err := old.Create(t.Context(), nil, o); err != nil {
		t.Fatal(err) // its time is over, and nobody leads
	}
	now := lead(long)
	refused := func(err error) {
		t.Helper()
		wantHint(t, err, turnstone.KindUnavailable)
	}
	_, _, err := old.Create(t.Context(), nil, object())
	refused(err)
	_, err = old.Change(t.Context(), "n", o.Kind, o.ID, records.Change{Event: records.Configured})
	refused(err)
	_, err = old.Number(t.Context())
	refused(err)
	refused(old.Revoke(t.Context(), records.Revocation{Issuer: "i", TokenID: "t"}))
	refused(old.Prune(t.Context()))
	if _, err := now.Change(t.Context(), "n", o.Kind, o.ID,
		records.Change{Event: records.Configured}); err != nil {
		t.Error(err)
	}
}

// TestTakeWaits: a term begins after the transaction in which the last one writes, also when its
// process is stopped within it: the server ends the transaction.
func TestTakeWaits(t *testing.T) {
	l, schema := lease(t)
	term, _, err := l.Take(t.Context(), "a", "", time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	db := openPostgres(t, recordstest.NewClock(), records.Options{Schema: schema, Fence: term.Fence,
		Silent: 3 * time.Second})
	t.Cleanup(func() { _ = db.Close() })
	began, stopped := make(chan struct{}), make(chan struct{})
	written := make(chan error, 1)
	go func() {
		written <- records.WriteSlowly(context.WithoutCancel(t.Context()), db, func() {
			close(began)
			<-stopped
		})
	}()
	<-began
	next, taken := records.Term{}, false
	for !taken && err == nil {
		next, taken, err = l.Take(t.Context(), "b", "", long)
	}
	close(stopped)
	if err != nil || next.Fence <= term.Fence {
		t.Errorf("the next term %+v: %v", next, err)
	}
	if err := <-written; err == nil {
		t.Error("the transaction was stored after the next term began")
	}
}

// TestRenewDoesNotWait: a lease is renewed while a transaction writes for long.
func TestRenewDoesNotWait(t *testing.T) {
	l, schema := lease(t)
	term, _, err := l.Take(t.Context(), "a", "", long)
	if err != nil {
		t.Fatal(err)
	}
	db := openPostgres(t, recordstest.NewClock(), records.Options{Schema: schema, Fence: term.Fence})
	t.Cleanup(func() { _ = db.Close() })
	err = records.WriteSlowly(t.Context(), db, func() {
		if ok, err := l.Renew(t.Context(), term.Fence, long); err != nil || !ok {
			t.Errorf("renewed %v: %v", ok, err)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSchemas: servers whose URLs name different schemas share a database, and nothing in it.
func TestSchemas(t *testing.T) {
	s := pgtest.Shared(t)
	for range 2 {
		at := s.URL + "&schema=" + s.Schema(t.Name())
		l, err := records.OpenLease(t.Context(), at, records.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		term, taken, err := l.Take(t.Context(), "a", "", long)
		if err != nil || !taken {
			t.Errorf("the first term %+v: %v", term, err)
		}
		db, err := records.Open(t.Context(), at, records.Options{Fence: term.Fence, Silent: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if _, _, err := db.Create(t.Context(), nil, object()); err != nil || db.Size() == 0 {
			t.Errorf("size %d: %v", db.Size(), err)
		}
		if list, _, err := db.List(t.Context(), "a", records.Filter{Kind: records.Sandbox},
			records.Page{}); err != nil || len(list) != 1 {
			t.Errorf("%d objects: %v", len(list), err)
		}
	}
}

// TestPostgresAway: without its server a store's calls fail as unavailable, and with it they succeed
// again.
func TestPostgresAway(t *testing.T) {
	s := pgtest.New(t)
	db, err := records.Open(t.Context(), s.URL, records.Options{Silent: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	k := &records.Key{Tenant: "a", Method: "m", Key: "k", Request: turnstone.DigestBytes(nil)}
	o := object()
	if _, _, err := db.Create(t.Context(), k, o); err != nil {
		t.Fatal(err)
	}
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	_, _, err = db.Create(t.Context(), k, object())
	wantHint(t, err, turnstone.KindUnavailable)
	_, err = db.Object(t.Context(), "a", o.Kind, o.ID)
	wantHint(t, err, turnstone.KindUnavailable)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	made, old, err := db.Create(t.Context(), k, object())
	if err != nil || !old || made[0].ID != o.ID {
		t.Errorf("after its crash: %v, old %v: %v", made, old, err)
	}
	if err := errors.Join(db.Check(t.Context())); err != nil || db.Size() == 0 {
		t.Errorf("check: %v, size %d", err, db.Size())
	}
}

// TestLostTerm: a database loses the begin of a term, because a standby without the newest
// transactions became the primary. The controller of that term and the next one are not both leaders.
func TestLostTerm(t *testing.T) {
	s := pgtest.New(t, "fsync=off")
	open := func() *records.Lease {
		l, err := records.OpenLease(t.Context(), s.URL, records.Options{Schema: "lost"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	take := func(l *records.Lease, holder string) records.Term {
		t.Helper()
		term, taken, err := l.Take(t.Context(), holder, "", long)
		if err != nil || !taken {
			t.Fatalf("%s: %+v %v", holder, term, err)
		}
		return term
	}
	one := open()
	if err := one.End(t.Context(), take(one, "a").Fence); err != nil {
		t.Fatal(err)
	}
	goBack, err := s.Remember()
	if err != nil {
		t.Fatal(err)
	}
	lost := take(open(), "a")
	if err := goBack(); err != nil {
		t.Fatal(err)
	}
	l := open()
	if next := take(l, "b"); next.Fence <= lost.Fence {
		t.Errorf("fence %d after %d", next.Fence, lost.Fence)
	}
	if still, err := l.Renew(t.Context(), lost.Fence, long); still || err != nil {
		t.Errorf("a lost term is renewed: %t %v", still, err)
	}
	if err := l.End(t.Context(), lost.Fence); err != nil {
		t.Error(err)
	}
	if term, taken, err := l.Take(t.Context(), "c", "", long); taken || err != nil || term.Holder != "b" {
		t.Errorf("a lost term has ended the next one: %+v %v", term, err)
	}
}
