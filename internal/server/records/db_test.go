package records_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/server/records/recordstest"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := leaktest.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open(t testing.TB, path string, c *recordstest.Clock) *records.DB {
	t.Helper()
	db, err := records.Open(context.Background(), path,
		records.Options{Now: c.Now, Elapsed: c.Elapsed})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestSQLite(t *testing.T) {
	recordstest.Run(t, func(t testing.TB, c *recordstest.Clock) records.Store {
		dir, err := os.MkdirTemp("", "records") // rapid opens many in one test
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return open(t, filepath.Join(dir, "server.db"), c)
	})
}

// object returns a new sandbox.
func object() records.Object {
	return records.Object{Kind: records.Sandbox, ID: string(turnstone.NewSandboxID()), Tenant: "a",
		Node: "n"}
}

// TestRestored: after a backup is restored, numbers go on above those that were given since.
func TestRestored(t *testing.T) {
	dir, c := t.TempDir(), recordstest.NewClock()
	path, backup := filepath.Join(dir, "server.db"), filepath.Join(dir, "backup.db")
	number := func(path string, want int) (last uint64) {
		t.Helper()
		db := open(t, path, c)
		for range want {
			n, err := db.Number(t.Context())
			if err != nil || n <= last {
				t.Fatalf("%d after %d: %v", n, last, err)
			}
			last = n
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return last
	}
	number(path, 3)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backup, b, 0o600); err != nil {
		t.Fatal(err)
	}
	before := number(path, 10)
	c.Pass(time.Second)
	if after := number(backup, 1); after <= before {
		t.Errorf("the restored database gives %d after %d", after, before)
	}
}

// TestReopen: all that a controller decided survives its process, also one that did not close the
// database, and the age of the database does not go back.
func TestReopen(t *testing.T) {
	path, c := filepath.Join(t.TempDir(), "server.db"), recordstest.NewClock()
	db := open(t, path, c)
	k := &records.Key{Tenant: "a", Method: "m", Key: "k", Request: turnstone.DigestBytes(nil)}
	made, _, err := db.Create(t.Context(), k, object())
	if err != nil {
		t.Fatal(err)
	}
	c.Pass(100 * time.Hour)
	if _, err := db.Change(t.Context(), "n", made[0].Kind, made[0].ID,
		records.Change{Event: records.CreateFailed}); err != nil {
		t.Fatal(err)
	}
	number, err := db.Number(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Another process: its clock that never jumps begins at 0.
	other := recordstest.NewClock()
	again := open(t, path, other)
	defer func() { _ = again.Close() }()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := again.Number(t.Context()); err != nil || n <= number {
		t.Errorf("number %d after %d: %v", n, number, err)
	}
	for _, step := range []struct {
		pass time.Duration
		old  bool
	}{{0, true}, {23 * time.Hour, true}, {2 * time.Hour, false}} {
		other.Pass(step.pass)
		if _, old, err := again.Create(t.Context(), k, object()); err != nil || old != step.old {
			t.Errorf("after %v: old %v: %v", step.pass, old, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v: %v", info.Mode(), err)
	}
}

// TestPageTokensSurvive: a page's token is good after a restart.
func TestPageTokensSurvive(t *testing.T) {
	path, c := filepath.Join(t.TempDir(), "server.db"), recordstest.NewClock()
	db := open(t, path, c)
	if _, _, err := db.Create(t.Context(), nil, object(), object()); err != nil {
		t.Fatal(err)
	}
	f := records.Filter{Kind: records.Sandbox}
	_, next, err := db.List(t.Context(), "a", f, records.Page{Size: 1})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	db = open(t, path, c)
	defer func() { _ = db.Close() }()
	list, _, err := db.List(t.Context(), "a", f, records.Page{Token: next})
	if err != nil || len(list) != 1 {
		t.Errorf("the next page has %d objects: %v", len(list), err)
	}
	// Another database has another secret.
	foreign := open(t, filepath.Join(t.TempDir(), "server.db"), c)
	defer func() { _ = foreign.Close() }()
	if _, _, err := foreign.List(t.Context(), "a", f, records.Page{Token: next}); turnstone.KindOf(
		err) != turnstone.KindInvalid {
		t.Errorf("the token of another database: %v", err)
	}
}

// wantHint checks an error of the database.
func wantHint(t *testing.T, err error, kind turnstone.Kind) {
	t.Helper()
	if turnstone.KindOf(err) != kind || turnstone.HintOf(err) == "" {
		t.Errorf("the error is %v, kind %s, hint %q; want kind %s", err, turnstone.KindOf(err),
			turnstone.HintOf(err), kind)
	}
}

// TestFull: a full disk is an error of kind Exhausted; what was stored can be read, and when there
// is room again the same request succeeds.
func TestFull(t *testing.T) {
	path, c := filepath.Join(t.TempDir(), "server.db"), recordstest.NewClock()
	db := open(t, path, c)
	defer func() { _ = db.Close() }()
	made, _, err := db.Create(t.Context(), nil, object())
	if err != nil {
		t.Fatal(err)
	}
	limit := func(pages int) { // SQLite reports its limit as it reports a full disk
		t.Helper()
		if err := records.LimitPages(t.Context(), db, pages); err != nil {
			t.Fatal(err)
		}
	}
	limit(1)
	k := &records.Key{Tenant: "a", Method: "m", Key: "k", Request: turnstone.DigestBytes(nil)}
	big := func() (all []records.Object) {
		for range 4 {
			o := object()
			o.Detail = make([]byte, records.MaxDetail)
			all = append(all, o)
		}
		return all
	}
	_, _, err = db.Create(t.Context(), k, big()...)
	wantHint(t, err, turnstone.KindExhausted)
	if got, err := db.Object(t.Context(), "a", made[0].Kind, made[0].ID); err != nil ||
		got.ID != made[0].ID {
		t.Errorf("reading after a full disk: %v", err)
	}
	if list, _, err := db.List(t.Context(), "a", records.Filter{Kind: records.Sandbox},
		records.Page{}); err != nil || len(list) != 1 {
		t.Errorf("the failed call left %d objects: %v", len(list)-1, err)
	}
	limit(1 << 20)
	if _, old, err := db.Create(t.Context(), k, big()...); err != nil || old {
		t.Errorf("with room again: old %v: %v", old, err)
	}
}

// TestDamaged: files that are no database, or a damaged one, are errors of kind Integrity.
func TestDamaged(t *testing.T) {
	c := recordstest.NewClock()
	path := filepath.Join(t.TempDir(), "server.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := records.Open(t.Context(), path, records.Options{})
	wantHint(t, err, turnstone.KindIntegrity)

	path = filepath.Join(t.TempDir(), "server.db")
	db := open(t, path, c)
	for range 50 {
		o := object()
		o.Detail = make([]byte, 10_000)
		if _, _, err := db.Create(t.Context(), nil, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Check(t.Context()), db.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 8 << 10; i < len(b); i++ {
		b[i] ^= 0x55
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err = records.Open(t.Context(), path, records.Options{})
	if err == nil {
		_, _, err = db.List(t.Context(), "a", records.Filter{Kind: records.Sandbox},
			records.Page{})
		wantHint(t, db.Check(t.Context()), turnstone.KindIntegrity)
		_ = db.Close()
	}
	wantHint(t, err, turnstone.KindIntegrity)
}

// TestCannotOpen: a newer database, a missing folder and a cancelled call have their kinds.
func TestCannotOpen(t *testing.T) {
	c := recordstest.NewClock()
	path := filepath.Join(t.TempDir(), "server.db")
	if err := open(t, path, c).Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = raw.Exec("PRAGMA user_version = 99")
	if err = errors.Join(err, raw.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = records.Open(t.Context(), path, records.Options{})
	wantHint(t, err, turnstone.KindUnavailable)

	_, err = records.Open(t.Context(), filepath.Join(t.TempDir(), "no", "server.db"),
		records.Options{})
	wantHint(t, err, turnstone.KindUnavailable)

	db := open(t, filepath.Join(t.TempDir(), "server.db"), c)
	defer func() { _ = db.Close() }()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = db.Create(gone, nil, object())
	if turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("a cancelled call: %v", err)
	}
}

// TestNoTokenInFile: what looks like a token is in no file of the database.
func TestNoTokenInFile(t *testing.T) {
	dir, c := t.TempDir(), recordstest.NewClock()
	db := open(t, filepath.Join(dir, "server.db"), c)
	const token = "eyJhbGciOiJFZERTQSIsImtpZCI6IngifQ.eyJzdWIiOiJtYXJrZXIifQ.c2ln"
	_ = db.PutToken(t.Context(), records.Token{ID: token, Tenant: "a", Key: "k",
		Issued: c.Now(), Expires: c.Now().Add(time.Hour)})
	_ = db.Revoke(t.Context(), records.Revocation{Issuer: "i", TokenID: token})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || strings.Contains(string(b), token[:20]) {
			t.Errorf("%s has the token: %v", f, err)
		}
	}
}

// FuzzPage: no token of a page but the store's own is accepted.
func FuzzPage(f *testing.F) {
	c := recordstest.NewClock()
	db := open(f, filepath.Join(f.TempDir(), "server.db"), c)
	f.Cleanup(func() { _ = db.Close() })
	if _, _, err := db.Create(f.Context(), nil, object(), object()); err != nil {
		f.Fatal(err)
	}
	filter := records.Filter{Kind: records.Sandbox}
	_, own, err := db.List(f.Context(), "a", filter, records.Page{Size: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add(own[:len(own)-1] + "A")
	f.Add("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, token string) {
		list, _, err := db.List(t.Context(), "a", filter, records.Page{Token: token})
		if token != own && token != "" && (turnstone.KindOf(err) != turnstone.KindInvalid ||
			len(list) > 0) {
			t.Fatalf("%q: %d objects, %v", token, len(list), err)
		}
	})
}

func BenchmarkCreate(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
	defer func() { _ = db.Close() }()
	for i := 0; b.Loop(); i++ {
		k := &records.Key{Tenant: "a", Method: "m", Key: fmt.Sprint(i),
			Request: turnstone.DigestBytes(nil)}
		if _, _, err := db.Create(b.Context(), k, object()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkActivity is a command's start or end, which is not synced to the disk.
func BenchmarkActivity(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
	defer func() { _ = db.Close() }()
	o := object()
	if _, _, err := db.Create(b.Context(), nil, o); err != nil {
		b.Fatal(err)
	}
	states := []records.State{records.Ready, records.Running}
	for i := 0; b.Loop(); i++ {
		if _, err := db.Change(b.Context(), "n", o.Kind, o.ID,
			records.Change{State: states[i%2]}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkObject reads an object by its ID, as each channel that opens does.
func BenchmarkObject(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
	defer func() { _ = db.Close() }()
	o := object()
	if _, _, err := db.Create(b.Context(), nil, o); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := db.Object(b.Context(), "a", o.Kind, o.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkList is a page of 50 in the middle of 10,000 objects.
func BenchmarkList(b *testing.B) {
	db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
	defer func() { _ = db.Close() }()
	for range 100 {
		var all []records.Object
		for range 100 {
			all = append(all, object())
		}
		if _, _, err := db.Create(b.Context(), nil, all...); err != nil {
			b.Fatal(err)
		}
	}
	f, p := records.Filter{Kind: records.Sandbox}, records.Page{Size: 100}
	for range 50 {
		_, next, err := db.List(b.Context(), "a", f, p)
		if err != nil {
			b.Fatal(err)
		}
		p.Token = next
	}
	p.Size = 50
	for b.Loop() {
		if _, _, err := db.List(b.Context(), "a", f, p); err != nil {
			b.Fatal(err)
		}
	}
}
