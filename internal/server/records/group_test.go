package records_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/server/records/recordstest"
)

// both runs a test with each database.
func both(t *testing.T, f func(t *testing.T, db *records.DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		db := open(t, filepath.Join(t.TempDir(), "server.db"), recordstest.NewClock())
		defer func() { _ = db.Close() }()
		f(t, db)
	})
	t.Run("postgres", func(t *testing.T) {
		db := openPostgres(t, recordstest.NewClock(), records.Options{})
		defer func() { _ = db.Close() }()
		f(t, db)
	})
}

// TestGroup: of writes that share a transaction each has its own outcome, and one that fails leaves
// nothing, also if its statement failed in the database.
func TestGroup(t *testing.T) {
	wrong := errors.New("wrong")
	both(t, func(t *testing.T, db *records.DB) {
		add := func(name string) func(*records.Writer) error {
			return func(w *records.Writer) error { return w.Tenant(name) }
		}
		errs := records.Together(t.Context(), db, add("a"),
			func(w *records.Writer) error { return errors.Join(w.Tenant("b"), wrong) },
			add("a"), add("c"))
		if errs[0] != nil || !errors.Is(errs[1], wrong) || errs[2] == nil || errs[3] != nil {
			t.Errorf("the errors are %v", errs)
		}
		all, err := db.Tenants(t.Context())
		if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "c" {
			t.Errorf("stored %v: %v", all, err)
		}
	})
}

// TestCallersThatLeave: callers that leave while they wait for a transaction do not stop the others.
func TestCallersThatLeave(t *testing.T) {
	both(t, func(t *testing.T, db *records.DB) {
		began, stopped := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			if err := records.WriteSlowly(t.Context(), db, func() {
				close(began)
				<-stopped
			}); err != nil {
				t.Error(err)
			}
		})
		<-began
		gone, leave := context.WithCancel(t.Context())
		var left sync.WaitGroup
		for range 4 {
			left.Go(func() {
				_, _, err := db.Create(gone, nil, object())
				if turnstone.KindOf(err) != turnstone.KindCanceled {
					t.Errorf("a caller that left: %v", err)
				}
			})
			all.Go(func() {
				if _, _, err := db.Create(t.Context(), nil, object()); err != nil {
					t.Error(err)
				}
			})
		}
		leave()
		left.Wait()
		close(stopped)
		all.Wait()
		list, _, err := db.List(t.Context(), "a", records.Filter{Kind: records.Sandbox}, records.Page{})
		if err != nil || len(list) != 4 {
			t.Errorf("%d objects: %v", len(list), err)
		}
	})
}

// seen are the errors that a records.Watch is told of.
type seen struct {
	mu  sync.Mutex
	all []error
}

func (s *seen) Wrote(_, _ time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, err)
}

// TestWatch: who watches is told of each write, with the kind of its error.
func TestWatch(t *testing.T) {
	w := &seen{}
	db, err := records.Open(t.Context(), filepath.Join(t.TempDir(), "server.db"),
		records.Options{Watch: w})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, _, err := db.Create(t.Context(), nil, object()); err != nil {
		t.Fatal(err)
	}
	if err := records.LimitPages(t.Context(), db, 1); err != nil {
		t.Fatal(err)
	}
	big := object()
	big.Detail = make([]byte, records.MaxDetail)
	_, _, err = db.Create(t.Context(), nil, big, big)
	if len(w.all) != 2 || w.all[0] != nil || turnstone.KindOf(w.all[1]) != turnstone.KindExhausted {
		t.Errorf("%v, and the watch saw %v", err, w.all)
	}
}

// TestPanic: a write that panics ends its own call, and those that share its transaction fail.
func TestPanic(t *testing.T) {
	both(t, func(t *testing.T, db *records.DB) {
		began, stopped := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			defer func() { _ = recover() }()
			_ = records.WriteSlowly(t.Context(), db, func() {
				close(began)
				<-stopped
				panic("wrong")
			})
			t.Error("no panic")
		})
		<-began
		close(stopped)
		all.Wait()
		if _, _, err := db.Create(t.Context(), nil, object()); err != nil {
			t.Error(err)
		}
	})
}

// TestHalt: a store that has to stop refuses what is asked later.
func TestHalt(t *testing.T) {
	both(t, func(t *testing.T, db *records.DB) {
		db.Halt()
		if _, err := db.Number(t.Context()); err == nil {
			t.Error("a halted store writes")
		}
		if _, err := db.Nodes(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestStrangeText: what no database holds is not found, and no fault.
func TestStrangeText(t *testing.T) {
	both(t, func(t *testing.T, db *records.DB) {
		for _, s := range []string{"a\x00b", "\xff", "\xc3"} {
			if _, err := db.Object(t.Context(), s, records.Sandbox, s); turnstone.KindOf(err) !=
				turnstone.KindNotFound {
				t.Errorf("%q: %v", s, err)
			}
			for _, f := range []records.Filter{{Name: s}, {IDs: []string{s}}, {Prefix: s},
				{Sessions: []string{s}}, {Labels: map[string]string{"l": s}}} {
				f.Kind = records.Session
				list, _, err := db.List(t.Context(), "a", f, records.Page{})
				if err != nil || len(list) > 0 {
					t.Errorf("%+v: %v %v", f, list, err)
				}
			}
		}
	})
}

// TestOrderAcrossProcesses: two processes that write have one order of creations, and a mark of one is
// after what the other has made.
func TestOrderAcrossProcesses(t *testing.T) {
	c := recordstest.NewClock()
	schema := pgtest.Shared(t).Schema(t.Name())
	one := openPostgres(t, c, records.Options{Schema: schema})
	two := openPostgres(t, c, records.Options{Schema: schema})
	defer func() { _, _ = one.Close(), two.Close() }()
	var all sync.WaitGroup
	var mu sync.Mutex
	var marks []records.Mark
	for _, db := range []*records.DB{one, two} {
		for range 4 {
			all.Go(func() {
				for range 5 {
					_, _, err := db.Create(t.Context(), nil, object())
					m, failed := db.Mark(t.Context())
					if err = errors.Join(err, failed); err != nil {
						t.Error(err)
					}
					mu.Lock()
					marks = append(marks, m)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if slices.Max(marks) != 40 {
		t.Errorf("the last mark is %d", slices.Max(marks))
	}
}
