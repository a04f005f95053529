package pg_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, s *pgtest.Server, schema string) *sql.DB {
	t.Helper()
	db, err := pg.Open(t.Context(), s.URL, schema)
	if err != nil {
		t.Fatal(err, turnstone.HintOf(err))
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestSchemas: each pool sees the tables of its own schema, and one of many openers creates it.
func TestSchemas(t *testing.T) {
	s := pgtest.Shared(t)
	files := fstest.MapFS{"0001.sql": {Data: []byte("CREATE TABLE one (a TEXT); INSERT INTO one VALUES ('x')")},
		"0002.sql": {Data: []byte("CREATE TABLE two (a TEXT)")}}
	for _, schema := range []string{s.Schema("a"), s.Schema("b")} {
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				db, err := pg.Open(t.Context(), s.URL, schema)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = db.Close() }()
				if err := pg.Migrate(t.Context(), db, "things", files); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		var n int
		if err := open(t, s, schema).QueryRow("SELECT count(*) FROM one, migrations").Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows, %v", n, err)
		}
		older := fstest.MapFS{"0001.sql": files["0001.sql"]}
		err := pg.Migrate(t.Context(), open(t, s, schema), "things", older)
		if turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("an older program: %v", err)
		}
		broken := fstest.MapFS{"0001.sql": {Data: []byte("CREATE TABLE three (a TEXT); SELECT nonsense")}}
		if err := pg.Migrate(t.Context(), open(t, s, schema), "broken", broken); err == nil {
			t.Error("a broken migration is accepted")
		}
		if _, err := open(t, s, schema).Exec("SELECT * FROM three"); pg.State(err) != "42P01" {
			t.Errorf("half a migration stays: %v", err)
		}
	}
}

func TestURLs(t *testing.T) {
	for url, ok := range map[string]bool{
		"postgres://turn@db.example.org/turn":                     true,
		"postgresql://turn@/turn?host=/run/postgresql":            true,
		"postgres://turn@db/turn?sslmode=verify-full&passfile=/x": true,
		"postgres://turn:opensesame@db/turn":                      false,
		"postgres://turn@db/turn?password=opensesame":             false,
		"host=db password=opensesame":                             false,
		"mysql://turn@db/turn":                                    false,
		"":                                                        false,
	} {
		err := pg.CheckURL(url)
		if (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		}
		if !ok {
			if _, err := pg.Open(t.Context(), url, "s"); turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%s: %v", url, err)
			}
		}
		if text := fmt.Sprint(err, turnstone.HintOf(err), pg.Name(url)); strings.Contains(text, "opensesame") {
			t.Errorf("the password is told: %s", text)
		}
	}
	for _, schema := range []string{"", "A", "a b", `a"; DROP TABLE x; --`, strings.Repeat("a", 64)} {
		_, err := pg.Open(t.Context(), "postgres://turn@/x", schema)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", schema, err)
		}
	}
}

func TestPlaceholders(t *testing.T) {
	for in, want := range map[string]string{
		"SELECT 1":                       "SELECT 1",
		"a = ? AND b = ?":                "a = $1 AND b = $2",
		"a = ?1 AND b = ?2 OR c = ?1":    "a = $1 AND b = $2 OR c = $1",
		strings.Repeat("?,", 11) + "end": "$1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,end",
	} {
		if got := pg.Placeholders(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// TestErrors makes the server fail, and looks at what a user is told.
func TestErrors(t *testing.T) {
	s := pgtest.New(t, "fsync=off", "max_connections=5", "superuser_reserved_connections=0")
	db := open(t, s, "s")
	if _, err := db.Exec("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO t VALUES (1, 0), (2, 0)"); err != nil {
		t.Fatal(err)
	}
	_, duplicate := db.Exec("INSERT INTO t VALUES (1, 1)")
	if !pg.Duplicate(duplicate) {
		t.Errorf("%v", duplicate)
	}
	_, zero := db.Exec("SELECT $1::text", "a\x00b")
	_, badly := db.Exec("SELECT $1::text", "a\xffb")
	_, syntax := db.Exec("SELECT FROM WHERE")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, gone := db.ExecContext(canceled, "SELECT 1")
	_, noDatabase := pg.Open(t.Context(), strings.Replace(s.URL, "/postgres?", "/none?", 1), "s")
	_, noUser := pg.Open(t.Context(), strings.Replace(s.URL, "turn@", "nobody@", 1), "s")
	typed := turnstone.Errorf("a.b", turnstone.KindNotFound, "it", "is not here")
	for _, c := range []struct {
		name string
		err  error
		kind turnstone.Kind
	}{
		{"zero byte", zero, turnstone.KindInvalid}, {"not UTF-8", badly, turnstone.KindInvalid},
		{"syntax", syntax, turnstone.KindInternal}, {"duplicate", duplicate, turnstone.KindInternal},
		{"canceled", gone, turnstone.KindCanceled}, {"no database", noDatabase, turnstone.KindDenied},
		{"no user", noUser, turnstone.KindDenied}, {"typed", typed, turnstone.KindNotFound},
	} {
		if err := pg.Error("x.y", "it", c.err); err == nil || turnstone.KindOf(err) != c.kind {
			t.Errorf("%s: kind %v of %v", c.name, turnstone.KindOf(err), err)
		}
	}
	if err := pg.Error("x.y", "it", nil); err != nil {
		t.Error(err)
	}

	// all connections are in use: who waits gets one
	var used []*sql.Conn
	other, err := sql.Open("pgx", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	for {
		c, err := other.Conn(t.Context())
		if err != nil {
			if pg.State(err) != "53300" || !pg.Away(err) ||
				turnstone.KindOf(pg.Error("x.y", "it", err)) != turnstone.KindUnavailable {
				t.Errorf("%v", err)
			}
			break
		}
		used = append(used, c)
	}
	tries := 0
	err = pg.Retry(t.Context(), time.Minute, func() error {
		c, err := other.Conn(t.Context())
		if tries++; err == nil {
			return c.Close()
		}
		for _, c := range used {
			_ = c.Raw(func(any) error { return errBad })
			_ = c.Close()
		}
		used = nil
		return err
	})
	if err != nil || tries < 2 {
		t.Errorf("%v after %d", err, tries)
	}

	// a server that is not there, and comes back
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec("SELECT 1")
	if !pg.Away(err) || turnstone.KindOf(pg.Error("x.y", "it", err)) != turnstone.KindUnavailable {
		t.Errorf("stopped: %v", err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := pg.Retry(t.Context(), time.Minute, func() error { _, err := db.Exec("SELECT 1"); return err }); err != nil {
		t.Errorf("started again: %v", err)
	}
}

var errBad = errors.New("bad")

// TestDeadlock: of two transactions that wait for each other one fails with a conflict, and Retry lets it
// run again.
func TestDeadlock(t *testing.T) {
	s := pgtest.Shared(t)
	db := open(t, s, s.Schema("deadlock"))
	if _, err := db.Exec("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO t VALUES (1, 0), (2, 0)"); err != nil {
		t.Fatal(err)
	}
	var meet sync.WaitGroup
	meet.Add(2)
	ended := make(chan int, 2)
	for i := range 2 {
		go func() {
			tries := 0
			err := pg.Retry(t.Context(), 2*time.Minute, func() error {
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }()
				if _, err := tx.Exec("UPDATE t SET n = n + 1 WHERE id = $1", 1+i); err != nil {
					return err
				}
				if tries++; tries == 1 {
					meet.Done()
					meet.Wait()
				}
				if _, err := tx.Exec("UPDATE t SET n = n + 1 WHERE id = $1", 2-i); err != nil {
					return err
				}
				return tx.Commit()
			})
			if err != nil {
				t.Error(err)
			}
			ended <- tries
		}()
	}
	if tries := <-ended + <-ended; tries != 3 {
		t.Errorf("%d tries", tries)
	}
	var sum int
	if err := db.QueryRow("SELECT sum(n) FROM t").Scan(&sum); err != nil || sum != 4 {
		t.Errorf("%d, %v", sum, err)
	}
}
