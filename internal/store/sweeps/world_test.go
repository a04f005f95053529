package sweeps

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/guard"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// errCrash ends a sweep at any step, as a crash does.
var errCrash = errors.New("crashed")

// A bucket is a blob.Store in memory, whose removals may arrive late.
type bucket struct {
	mu    sync.Mutex
	blobs map[string][]byte
	late  []string // removals that have not arrived
	delay bool     // whether they arrive late; the caller is told that they have arrived
}

// arrive performs the late removals.
func (b *bucket) arrive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range b.late {
		delete(b.blobs, name)
	}
	b.late, b.delay = nil, false
}

// A door is the bucket of one machine.
type door struct {
	*bucket
	step func(what string) error // of a sweep; nil: the machine does not sweep
}

func (d *door) before(what string) error {
	if d.step == nil {
		return nil
	}
	return d.step(what)
}

func (d *door) Put(_ context.Context, name string, r io.Reader, _ int64) error {
	p, err := io.ReadAll(r)
	if err == nil {
		err = d.before("put")
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.blobs[name] = p
	d.mu.Unlock()
	return d.before("after put")
}

func (d *door) Get(_ context.Context, name string, off, n int64) (io.ReadCloser, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.blobs[name]
	if !ok {
		return nil, turnstone.Errorf("blob.get", turnstone.KindNotFound, name, "is not there")
	}
	n, err := blob.Range("blob.get", name, off, n, int64(len(p)))
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(p[off : off+n])), nil
}

func (d *door) List(_ context.Context, prefix string) iter.Seq2[blob.Info, error] {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []blob.Info
	for _, name := range slices.Sorted(maps.Keys(d.blobs)) {
		if strings.HasPrefix(name, prefix) {
			all = append(all, blob.Info{Name: name, Size: int64(len(d.blobs[name]))})
		}
	}
	return func(yield func(blob.Info, error) bool) {
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (d *door) Remove(_ context.Context, name string) error {
	if err := d.before("remove"); err != nil {
		return err
	}
	d.mu.Lock()
	if d.delay {
		d.late = append(d.late, name)
	} else {
		delete(d.blobs, name)
	}
	d.mu.Unlock()
	return d.before("after remove")
}

// A machine has an index of its own.
type machine struct {
	sweeps  *Sweeps
	rows    *lease.Rows
	door    *door
	store   *store.Store
	batch   *store.Batch // the work of a turn, open; nil: none
	put     []turnstone.Digest
	asleep  bool // its batch is lost
	alone   bool // no batch may be open
	sweeper bool // it sweeps
	lost    bool // another machine may sweep: it must note no removal
}

// A world is some machines with one bucket and one database.
type world struct {
	db       *sql.DB
	bucket   *bucket
	machines []*machine
	needed   map[turnstone.Digest]bool // what was announced
	depth    int                       // of sweeps within sweeps
}

func newWorld(t testing.TB, dir func() string, n int) *world {
	t.Helper()
	s := pgtest.Shared(t)
	ctx := context.Background()
	db, err := pg.Open(ctx, s.URL, s.Schema("sweeps"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{db: db, bucket: &bucket{blobs: map[string][]byte{}}, needed: map[turnstone.Digest]bool{}}
	for range n {
		m := &machine{door: &door{bucket: w.bucket}}
		if m.rows, err = lease.OpenRows(ctx, db, time.Hour); err == nil {
			m.sweeps, err = Open(ctx, db, m.rows)
		}
		if err == nil {
			m.sweeps.poll = time.Millisecond
			m.store, err = store.Open(ctx, dir(), m.door, store.Options{Shared: stepping{m.sweeps, w, m}})
		}
		if err != nil {
			t.Fatal(err)
		}
		w.machines = append(w.machines, m)
	}
	return w
}

func (w *world) close() {
	for _, m := range w.machines {
		m.end()
		_ = m.store.Close()
		m.rows.Close()
	}
	_ = w.db.Close()
}

// end ends the machine's batch: its turn is over, or its process.
func (m *machine) end() {
	if m.batch != nil {
		_ = m.batch.Close()
	}
	m.batch, m.put = nil, nil
}

// announce names the objects of the machine's batch in a transaction, if that is permitted.
func (w *world) announce(m *machine) error {
	ctx := context.Background()
	if err := m.batch.Flush(ctx); err != nil {
		return err
	}
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := m.sweeps.Check(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	for _, d := range m.put {
		w.needed[d] = true
	}
	return nil
}

// expire ends leases, as if their machines had been asleep for long.
func (w *world) expire(names string) error {
	_, err := w.db.Exec("UPDATE leases SET expires = '-infinity' WHERE name LIKE $1", names)
	return err
}

// stepping calls the world between the steps of a sweep.
type stepping struct {
	*Sweeps
	w *world
	m *machine
}

type steps struct {
	guard.Sweeping
	w *world
	m *machine
}

func (s stepping) Sweep(ctx context.Context, f func(context.Context, guard.Sweeping) error) error {
	return s.Sweeps.Sweep(ctx, func(ctx context.Context, x guard.Sweeping) error {
		return f(ctx, steps{x, s.w, s.m})
	})
}

func (s steps) around(what string, f func() error) error {
	if err := s.m.door.before(what); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return s.m.door.before("after " + what)
}

func (s steps) Condemn(ctx context.Context, packs [][32]byte) error {
	return s.around("condemn", func() error { return s.Sweeping.Condemn(ctx, packs) })
}

func (s steps) Wait(ctx context.Context) error {
	return s.around("wait", func() error {
		if err := s.m.door.before("waits"); err != nil {
			return err
		}
		return s.Sweeping.Wait(ctx)
	})
}

func (s steps) Alone(ctx context.Context, f func(context.Context) error) error {
	return s.around("alone", func() error {
		if err := s.m.door.before("waits"); err != nil {
			return err
		}
		return s.Sweeping.Alone(ctx, func(ctx context.Context) error {
			s.m.alone = true
			defer func() { s.m.alone = false }()
			return f(ctx)
		})
	})
}

func (s steps) Removed(ctx context.Context, packs [][32]byte) error {
	return s.around("removed", func() error {
		lost := s.m.lost
		err := s.Sweeping.Removed(ctx, packs)
		if lost && err == nil && len(packs) > 0 {
			return errUnsafe
		}
		return err
	})
}

// marker is what is needed, between steps.
func (w *world) marker(m *machine) store.Mark {
	return func(_ context.Context, keep func(turnstone.Digest) bool) error {
		if err := m.door.before("mark"); err != nil {
			return err
		}
		for d := range w.needed {
			keep(d)
		}
		return m.door.before("after mark")
	}
}

// errUnsafe is a removal by a machine whose lease another one has had.
var errUnsafe = errors.New("a machine that lost its lease removed packs")

// check reads all that was announced, on a machine.
func (w *world) check(rt *rapid.T, m *machine, when string) {
	for d := range w.needed {
		if _, err := m.store.Get(context.Background(), d); err != nil {
			rt.Fatalf("%s, what was announced is missing: %v", when, err)
		}
	}
}
