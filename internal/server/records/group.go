package records

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// errUnfinished is the error of a write whose group has panicked.
var errUnfinished = errors.New("the transaction was not finished")

// maxGroup bounds the writes of one transaction: one that fails is run again with the others.
const maxGroup = 64

// A change is a write that runs with others in one transaction. It may run twice, and only the last
// time counts.
type change func(ctx context.Context, tx *transaction) error

// A write is a change of a caller, who waits.
type write struct {
	op     string
	change change
	soft   bool
	asked  time.Time
	err    error
	// wake gets false when the write is done, or true when its caller has to run the next group.
	wake chan bool
}

// A group collects the writes that come while a transaction runs. They are the next transaction, so
// that many callers share a commit. Its caller has the answer after the commit.
type group struct {
	mu      sync.Mutex
	running bool
	waiting []*write
}

// do runs a write in a transaction, alone or with others. Once the transaction has begun, the
// caller's context ends nothing: others share it.
func (g *group) do(ctx context.Context, w *write, run func(context.Context, []*write)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	g.waiting = append(g.waiting, w)
	if g.running {
		g.mu.Unlock()
		if leads, err := g.wait(ctx, w); !leads {
			return err
		}
		g.mu.Lock()
	}
	g.running = true
	n := min(len(g.waiting), maxGroup)
	all := slices.Clone(g.waiting[:n]) // w is the first
	g.waiting = slices.Delete(g.waiting, 0, n)
	g.mu.Unlock()

	defer func() { // also after a panic, which ends one call and not the server
		for _, x := range all[1:] {
			x.wake <- false
		}
		g.mu.Lock()
		g.next()
		g.mu.Unlock()
	}()
	run(context.WithoutCancel(ctx), all)
	return w.err
}

// wait waits for the end of a write, or until its caller leads the next group.
func (g *group) wait(ctx context.Context, w *write) (leads bool, err error) {
	select {
	case leads = <-w.wake:
	case <-ctx.Done():
		if g.leave(w) {
			return false, ctx.Err()
		}
		leads = <-w.wake
	}
	return leads, w.err
}

// next has the first caller that waits run a group. The caller holds mu.
func (g *group) next() {
	if g.running = len(g.waiting) > 0; g.running {
		g.waiting[0].wake <- true
	}
}

// leave takes a write out that has not begun.
func (g *group) leave(w *write) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, w)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	select {
	case <-w.wake: // it was to lead
		g.next()
	default:
	}
	return true
}

// write runs a change. A soft one may be lost with the machine's power.
func (db *DB) write(ctx context.Context, soft bool, op string, f change) error {
	w := &write{op: op, change: f, soft: soft, asked: time.Now(), wake: make(chan bool, 1)}
	return db.fail(op, db.group.do(ctx, w, db.run))
}

// run runs the writes of a group in a transaction. If one fails, all run again, each in a part of
// the transaction that can be undone.
func (db *DB) run(ctx context.Context, all []*write) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(db.halted, end)()
	for _, w := range all {
		w.err = errUnfinished
	}
	began := time.Now()
	soft := !slices.ContainsFunc(all, func(w *write) bool { return !w.soft })
	failed, err := false, db.halted.Err()
	if err == nil {
		failed, err = db.together(ctx, all, soft)
	}
	each := failed && len(all) > 1 && ctx.Err() == nil
	if each {
		err = db.apart(ctx, all, soft)
	}
	took := time.Since(began)
	for _, w := range all {
		if err != nil || !each {
			w.err = err
		}
		w.err = db.fail(w.op, w.err)
		if db.options.Watch != nil {
			db.options.Watch.Wrote(began.Sub(w.asked), took, w.err)
		}
	}
}

// together runs all writes, and reports whether one of them failed.
func (db *DB) together(ctx context.Context, all []*write, soft bool) (failed bool, err error) {
	tx, err := db.d.begin(ctx, soft)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for _, w := range all {
		if err := w.change(ctx, &transaction{tx, db.d}); err != nil {
			return true, err
		}
	}
	return false, tx.Commit()
}

// apart is together with an error for each write.
func (db *DB) apart(ctx context.Context, all []*write, soft bool) error {
	tx, err := db.d.begin(ctx, soft)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for _, w := range all {
		_, err := tx.ExecContext(ctx, "SAVEPOINT part")
		if err == nil {
			if w.err = w.change(ctx, &transaction{tx, db.d}); w.err != nil {
				_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT part")
			}
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT part")
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}
