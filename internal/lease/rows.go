package lease

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Life is how long a lease of Rows lasts without being renewed.
const Life = time.Minute

// Rows are leases that are rows of a PostgreSQL database, for holders on several machines. A row has
// its holder, a number that grows with each holder (fence), and its end by the database's clock. The
// holder renews it at a third of its life. If it cannot, the lease is lost before its end, by the
// holder's own monotonic clock: the work stops before another holder begins. A holder that did not
// notice, because it was asleep, has another fence than the row: Check refuses what it stores.
type Rows struct {
	pool   *sql.DB
	holder string
	life   time.Duration
	now    string           // the database's clock, in SQL
	clock  func() time.Time // this machine's, monotonic

	mu     sync.Mutex
	held   map[string]*row // a lease that is being taken has no fence
	closed bool

	stop context.CancelFunc
	done chan struct{}
}

// OpenRows returns the leases in the schema of pool, which stays the caller's. life 0 is Life. Close
// ends them.
func OpenRows(ctx context.Context, pool *sql.DB, life time.Duration) (*Rows, error) {
	r, err := openRows(ctx, pool, life)
	if err != nil {
		return nil, err
	}
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(r.done)
		r.renewUntil(ctx)
	}()
	return r, nil
}

// openRows does not renew.
func openRows(ctx context.Context, pool *sql.DB, life time.Duration) (*Rows, error) {
	if life == 0 {
		life = Life
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	if err := pg.Migrate(ctx, pool, "leases", files); err != nil {
		return nil, err
	}
	return &Rows{pool: pool, holder: rand.Text(), life: life, now: "clock_timestamp()",
		clock: time.Now, held: map[string]*row{}, done: make(chan struct{})}, nil
}

// Close releases all leases that are held.
func (r *Rows) Close() {
	r.mu.Lock()
	r.closed = true
	var all []*row
	for _, l := range r.held {
		all = append(all, l)
	}
	r.mu.Unlock()
	if r.stop != nil {
		r.stop()
		<-r.done
	}
	for _, l := range all {
		l.Release()
	}
}

// margin is how long before its end a lease counts as lost: for the work to stop.
func (r *Rows) margin() time.Duration { return r.life / 6 }

// seconds is the life in SQL's terms.
func (r *Rows) seconds() float64 { return r.life.Seconds() }

// Take implements Leases.
func (r *Rows) Take(ctx context.Context, name, note string) (Lease, error) {
	l := &row{of: r, name: name, lost: make(chan struct{})}
	if !r.reserve(l) {
		return nil, nil
	}
	began := r.clock()
	fence, err := r.insert(ctx, name, note)
	if err != nil || fence == 0 {
		r.forget(l)
		return nil, pg.Error(op, name, err)
	}
	r.mu.Lock()
	l.fence = fence
	r.extend(l, began)
	r.mu.Unlock()
	return l, nil
}

// reserve notes that l is being taken; false if this process has a lease of that name, or is closed.
func (r *Rows) reserve(l *row) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[l.name] != nil || r.closed {
		return false
	}
	r.held[l.name] = l
	return true
}

func (r *Rows) forget(l *row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[l.name] == l {
		delete(r.held, l.name)
	}
	l.stopTimer()
}

// insert returns the fence of the lease; 0: somebody has it. A row of this process that it does not
// hold is from an attempt whose answer was lost.
func (r *Rows) insert(ctx context.Context, name, note string) (fence int64, err error) {
	var live bool
	err = r.pool.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM leases WHERE name = $1 AND "+
		"expires > "+r.now+" AND holder <> $2)", name, r.holder).Scan(&live)
	if err != nil || live {
		return 0, err
	}
	err = r.pool.QueryRowContext(ctx, `INSERT INTO leases AS l (name, holder, fence, expires, note)
		VALUES ($1, $2, nextval('fences'), `+r.now+` + make_interval(secs => $3), $4)
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = excluded.fence,
		expires = excluded.expires, note = excluded.note
		WHERE l.expires <= `+r.now+` OR l.holder = excluded.holder RETURNING fence`,
		name, r.holder, r.seconds(), note).Scan(&fence)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return fence, err
}

// Holder returns the note of who has the lease; false: nobody.
func (r *Rows) Holder(ctx context.Context, name string) (note string, held bool, err error) {
	err = r.pool.QueryRowContext(ctx,
		"SELECT note FROM leases WHERE name = $1 AND expires > "+r.now, name).Scan(&note)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return note, err == nil, pg.Error(op, name, err)
}

// Free returns an SQL condition: nobody has the lease whose name is the expression name.
func (r *Rows) Free(name string) string {
	return "NOT EXISTS (SELECT 1 FROM leases WHERE leases.name = " + name + " AND expires > " +
		r.now + ")"
}

// Forsake implements Leases.
func (r *Rows) Forsake(ctx context.Context, name string) error {
	_, err := r.pool.ExecContext(ctx, "DELETE FROM leases WHERE name = $1 AND expires <= "+r.now, name)
	return pg.Error(op, name, err)
}

// Sweep implements Leases.
func (r *Rows) Sweep(ctx context.Context, is func(name string) bool) (int, error) {
	rows, err := r.pool.QueryContext(ctx, "SELECT name FROM leases WHERE expires <= "+r.now)
	if err != nil {
		return 0, pg.Error(op, "", err)
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return 0, pg.Error(op, "", err)
		}
		if is(name) {
			names = append(names, name)
		}
	}
	if err := rows.Err(); err != nil {
		return 0, pg.Error(op, "", err)
	}
	res, err := r.pool.ExecContext(ctx,
		"DELETE FROM leases WHERE name = ANY($1) AND expires <= "+r.now, names)
	if err != nil {
		return 0, pg.Error(op, "", err)
	}
	n, err := res.RowsAffected()
	return int(n), pg.Error(op, "", err)
}

// renewUntil renews all leases at a third of their life, and soon again after a failure.
func (r *Rows) renewUntil(ctx context.Context) {
	pause := r.life / 3
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		within, cancel := context.WithTimeout(ctx, r.life/3)
		pause = r.life / 3
		if err := r.renew(within); err != nil {
			pause = r.life / 30
		}
		cancel()
	}
}

// renew puts off the end of all leases of this process. Those that another holder has are lost.
func (r *Rows) renew(ctx context.Context) error {
	began := r.clock()
	var fences []int64
	r.mu.Lock()
	for _, l := range r.held {
		if l.fence != 0 {
			fences = append(fences, l.fence)
		}
	}
	r.mu.Unlock()
	if len(fences) == 0 {
		return nil
	}
	still, err := r.update(ctx, fences)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := map[int64]bool{}
	for _, f := range fences {
		asked[f] = true
	}
	for _, l := range r.held {
		switch {
		case still[l.fence]:
			r.extend(l, began)
		case asked[l.fence]:
			l.lose(taken(l.name))
		}
	}
	return nil
}

// update returns the fences that rows of this process still have.
func (r *Rows) update(ctx context.Context, fences []int64) (map[int64]bool, error) {
	rows, err := r.pool.QueryContext(ctx, "UPDATE leases SET expires = "+r.now+
		" + make_interval(secs => $1) WHERE holder = $2 AND fence = ANY($3) RETURNING fence",
		r.seconds(), r.holder, fences)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	still := map[int64]bool{}
	for rows.Next() {
		var fence int64
		if err := rows.Scan(&fence); err != nil {
			return nil, err
		}
		still[fence] = true
	}
	return still, rows.Err()
}

// extend notes that l lasts for a life from the time at which the request for it began; r.mu is held.
func (r *Rows) extend(l *row, began time.Time) {
	l.until = began.Add(r.life - r.margin())
	left := l.until.Sub(r.clock())
	l.stopTimer()
	l.timer = time.AfterFunc(left, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.expire(l)
	})
}

// expire ends the work of a lease that was not renewed; r.mu is held.
func (r *Rows) expire(l *row) {
	if !r.clock().Before(l.until) {
		l.lose(away(l.name, r.life))
	}
}

func taken(name string) error {
	return turnstone.Errorf(op, turnstone.KindUnavailable, name,
		"its lease ended, and another machine has taken it").
		WithHint("this machine did not reach the database in time: see what the other one did, and " +
			"run the turn again")
}

func away(name string, life time.Duration) error {
	return turnstone.Errorf(op, turnstone.KindUnavailable, name,
		"its lease could not be renewed within %s", life).
		WithHint("check that the database runs, and the connection to it, and run the turn again")
}

// A row is a lease of Rows. r.mu guards its variable fields.
type row struct {
	of    *Rows
	name  string
	fence int64
	until time.Time // this machine's
	timer *time.Timer

	lost  chan struct{}
	cause error
}

func (l *row) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// lose is called with r.mu held.
func (l *row) lose(cause error) {
	if l.cause == nil {
		l.cause = cause
		close(l.lost)
	}
}

func (l *row) Lost() <-chan struct{} { return l.lost }

func (l *row) Cause() error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.cause
}

// Check reads the row for the transaction: nobody takes the lease before the transaction has ended.
func (l *row) Check(ctx context.Context, q Querier) error {
	var fence int64
	var holder string
	err := q.QueryRowContext(ctx, "SELECT fence, holder FROM leases WHERE name = $1 FOR SHARE",
		l.name).Scan(&fence, &holder)
	// A standby that became the primary without the newest transactions may give a fence again.
	if errors.Is(err, sql.ErrNoRows) || err == nil && (fence != l.fence || holder != l.of.holder) {
		return taken(l.name)
	}
	return err
}

// releaseWithin bounds the wait for a database that is away: then the lease ends by itself.
const releaseWithin = 5 * time.Second

func (l *row) Release() {
	l.of.forget(l)
	if l.fence == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	_, _ = l.of.pool.ExecContext(ctx, "DELETE FROM leases WHERE name = $1 AND fence = $2 "+
		"AND holder = $3", l.name, l.fence, l.of.holder)
}

// Wait is Take that waits for the end of another's lease. waiting is called once, before it waits,
// with the other's note; it may be nil.
func (r *Rows) Wait(ctx context.Context, name, note string, waiting func(note string)) (Lease, error) {
	pause := 10 * time.Millisecond
	for {
		l, err := r.Take(ctx, name, note)
		if l != nil || err != nil {
			return l, err
		}
		if waiting != nil {
			other, _, err := r.Holder(ctx, name)
			if err != nil {
				return nil, err
			}
			waiting(other)
			waiting = nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, pg.Error(op, name, context.Cause(ctx))
		}
		pause = min(2*pause, time.Second)
	}
}

// EndBefore ends the leases whose names begin with prefix, whose notes are numbers less than number, and
// that have expired, and returns how many other such leases there are. A holder that comes back cannot
// renew what was ended, and Check refuses what it stores.
func (r *Rows) EndBefore(ctx context.Context, prefix string, number int64) (left int, err error) {
	const older = "CASE WHEN starts_with(name, $1) THEN note::bigint < $2 ELSE false END"
	_, err = r.pool.ExecContext(ctx,
		"DELETE FROM leases WHERE "+older+" AND expires <= "+r.now, prefix, number)
	if err == nil {
		err = r.pool.QueryRowContext(ctx, "SELECT count(*) FROM leases WHERE "+older, prefix,
			number).Scan(&left)
	}
	return left, pg.Error(op, prefix, err)
}
