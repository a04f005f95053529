package session

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// refused checks an error of what a holder stores whose lease another machine has taken.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	wantKind(t, what, err, turnstone.KindUnavailable)
	if turnstone.HintOf(err) == "" {
		t.Errorf("%s: no hint in %v", what, err)
	}
}

// TestComesBack: a machine was asleep, another one found its turn interrupted, and resumed it. What the
// first stores after that is refused, whatever it is, and changes nothing.
func TestComesBack(t *testing.T) {
	place := shared(t)
	asleep, other := open(t, place), open(t, place)
	ctx := t.Context()
	s := must[turnstone.Session](t)(asleep.Create(ctx, "s"))
	base := grow(t, asleep, s, Main)
	turn := must[turnstone.Turn](t)(asleep.Start(ctx, StartTurn{Session: s.ID, Kind: "run"}))
	working, release := asleep.Running(ctx, turn.ID)
	defer release()
	step := Checkpoint{Turn: turn.ID, Record: digest("steps"), State: digest("state"), Step: 1}
	if err := asleep.SetCheckpoint(ctx, step); err != nil {
		t.Fatal(err)
	}
	end := Finish{Turn: turn.ID, Result: turnstone.ResultPassed, Record: digest("late"),
		State: digest("late state"), MoveBranch: true, ExpectedHead: &base.ID}
	stores := func(when string) {
		t.Helper()
		_, _, err := asleep.Finish(ctx, end)
		refused(t, "finish "+when, err)
		refused(t, "abandon "+when, asleep.Abandon(ctx, turn.ID))
	}
	died(t, asleep)
	if x := must[turnstone.Turn](t)(other.Turn(ctx, turn.ID)); !x.Interrupted() {
		t.Fatalf("%+v", x)
	}
	stores("after the other found it interrupted")
	if _, _, err := other.Reopen(ctx, turn.ID); err != nil {
		t.Fatal(err)
	}
	stores("while the other runs it")
	step.Step = 2
	refused(t, "a step", asleep.SetCheckpoint(ctx, step))
	if c := must[*Checkpoint](t)(other.Checkpoint(ctx, turn.ID)); c.Step != 1 {
		t.Errorf("%+v", c)
	}
	if _, _, err := open(t, place).Finish(ctx, end); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a process that never had the lease: %v", err)
	}
	if b := must[turnstone.Branch](t)(other.Branch(ctx, s.ID, Main)); b.Head != base.ID {
		t.Errorf("the branch has moved: %+v", b)
	}
	finish(t, other, must[turnstone.Turn](t)(other.Turn(ctx, turn.ID)))
	stores("after the other has ended it")
	if x := must[turnstone.Turn](t)(asleep.Turn(ctx, turn.ID)); x.Record == end.Record {
		t.Errorf("%+v", x)
	}
	if working.Err() != nil {
		t.Error("it was lost before a renewal said so")
	}
}

// TestHomeComesBack: so it is for a home.
func TestHomeComesBack(t *testing.T) {
	place := shared(t)
	asleep, other := open(t, place), open(t, place)
	ctx := t.Context()
	s := must[turnstone.Session](t)(asleep.Create(ctx, "s"))
	turn := must[turnstone.Turn](t)(asleep.Start(ctx, StartTurn{Session: s.ID, Kind: "run"}))
	l := must[lease.Lease](t)(asleep.Rows().Take(ctx, "home/mine", string(turn.ID)))
	use := &HomeUse{Turn: turn.ID, Name: "mine", Lease: l, New: true,
		Ended: turnstone.TreeRef{Root: digest("root"), Hash: digest("hash")}}
	if _, err := other.sql.ExecContext(ctx,
		"UPDATE leases SET expires = '-infinity' WHERE name = 'home/mine'"); err != nil {
		t.Fatal(err)
	}
	must[lease.Lease](t)(other.Rows().Take(ctx, "home/mine", "")).Release()
	_, _, err := asleep.Finish(ctx, Finish{Turn: turn.ID, Result: turnstone.ResultPassed, Home: use})
	refused(t, "the home", err)
	if _, has, err := other.Home(ctx, "mine"); has || err != nil {
		t.Errorf("%v, %v", has, err)
	}
	finish(t, asleep, turn) // the turn itself is still its own
}

// TestAway: the database is away when a turn ends. The turn's end waits for it, and is durable when it
// is announced; a turn does not begin meanwhile.
func TestAway(t *testing.T) {
	s := pgtest.New(t)
	place := s.URL + "#turn"
	db := open(t, place)
	ctx := t.Context()
	one := must[turnstone.Turn](t)(db.Start(ctx, StartTurn{Kind: "run"}))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := db.Finish(ctx, Finish{Turn: one.ID, Result: turnstone.ResultPassed,
			Record: digest("record"), MoveBranch: true})
		ended <- err
	}()
	for db.waited.Load() < 2 {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(time.Millisecond): //wait: the loop polls
		}
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if _, err := db.Start(short, StartTurn{Kind: "run"}); err == nil ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	x := must[turnstone.Turn](t)(open(t, place).Turn(ctx, one.ID))
	if x.Result != turnstone.ResultPassed || x.Record != digest("record") {
		t.Errorf("it was announced: %+v", x)
	}
}

// TestLostAnswer: the connection broke when the end of a turn was stored. The next attempt finds it.
func TestLostAnswer(t *testing.T) {
	db := open(t, shared(t))
	s := must[turnstone.Session](t)(db.Create(t.Context(), "s"))
	base := grow(t, db, s, Main)
	one := must[turnstone.Turn](t)(db.Start(t.Context(), StartTurn{Session: s.ID, Kind: "run"}))
	grow(t, db, s, Main)
	end := Finish{Turn: one.ID, Result: turnstone.ResultPassed, Record: digest("record"),
		MoveBranch: true, ExpectedHead: &base.ID}
	before := ""
	for _, attempt := range []string{"the first", "the next"} {
		branch, diverged, err := db.finish(t.Context(), end, &before)
		if err != nil || branch != "main-2" || !diverged {
			t.Errorf("%s: %s, %v, %v", attempt, branch, diverged, err)
		}
	}
	other := end
	other.Record = digest("another")
	if _, _, err := db.finish(t.Context(), other, &before); err == nil {
		t.Error("another end is taken for this one")
	}
}

// TestDeadlock: a transaction that PostgreSQL ends because of a deadlock runs again.
func TestDeadlock(t *testing.T) {
	db := open(t, shared(t))
	ctx := t.Context()
	s := must[turnstone.Session](t)(db.Create(ctx, "s"))
	other, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	// the other waits for longer, so that it is not the one that is ended
	for _, text := range []string{"SET LOCAL deadlock_timeout = '1min'",
		"UPDATE sessions SET next = next WHERE id = '" + string(s.ID) + "'"} {
		if _, err := other.ExecContext(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	attempts := 0
	locked := make(chan error, 1)
	err = db.write(ctx, func(tx *txn) error {
		if attempts++; attempts == 1 {
			go func() {
				err := pg.Lock(ctx, other, "sessions "+db.dialect.(*postgres).schema)
				if err == nil {
					err = other.Commit()
				}
				locked <- err
			}()
			waitsFor(t, db, "pg_advisory_xact_lock")
		}
		_, err := tx.ExecContext(ctx, "UPDATE sessions SET next = next + 10 WHERE id = ?", s.ID)
		return err
	})
	if err := <-locked; err != nil {
		t.Error(err)
	}
	if err != nil || attempts != 2 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
	if x := grow(t, db, s, Main); x.Number != 11 {
		t.Errorf("%+v", x)
	}
}

// waitsFor waits until a statement with this text waits for a lock.
func waitsFor(t *testing.T, db *DB, text string) {
	t.Helper()
	for {
		var waits bool
		err := db.sql.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT 1 FROM pg_stat_activity "+
			"WHERE wait_event_type = 'Lock' AND query LIKE $1 AND datname = current_database())",
			"%"+text+"%").Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		if waits {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestConnections: more processes than the server has connections for: who comes too late waits.
func TestConnections(t *testing.T) {
	s := pgtest.New(t, "fsync=off", "max_connections=6", "superuser_reserved_connections=0")
	db := open(t, s.URL+"#turn")
	session := must[turnstone.Session](t)(db.Create(t.Context(), "s"))
	db.sql.SetMaxIdleConns(0)
	greedy, err := sql.Open("pgx", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = greedy.Close() }()
	var used []*sql.Conn
	full := func() bool {
		c, err := greedy.Conn(t.Context())
		if err == nil {
			used = append(used, c)
		}
		return err != nil
	}
	for !full() {
	}
	if _, err := db.Find(t.Context(), "s"); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "max_connections") {
		t.Errorf("%v", err)
	}
	began := make(chan error, 1)
	go func() {
		_, err := db.Tag(t.Context(), turnstone.Turn{Session: session.ID, ID: "t_none"}, "x")
		began <- err
	}()
	greedy.SetMaxIdleConns(0)
	for _, c := range used {
		_ = c.Close()
	}
	if err := <-began; turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
}

// TestTenants: the sessions of one schema are not those of another.
func TestTenants(t *testing.T) {
	one, two := open(t, shared(t)), open(t, shared(t))
	must[turnstone.Session](t)(one.Create(t.Context(), "mine"))
	if all := must[[]turnstone.Session](t)(two.List(t.Context())); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	a, store, err := one.Identity(t.Context())
	if err != nil || store != "" {
		t.Error(store, err)
	}
	b, _, err := two.Identity(t.Context())
	if err != nil || a == b {
		t.Errorf("%s, %s, %v", a, b, err)
	}
	if err := one.Claim(t.Context(), "s3://a/b"); err != nil {
		t.Error(err)
	}
	if again, store, err := one.Identity(t.Context()); again != a || store != "s3://a/b" || err != nil {
		t.Error(again, store, err)
	}
	refused(t, "another bucket", one.Claim(t.Context(), "s3://a/c"))
}
