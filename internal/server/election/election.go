// Package election makes one of several controllers of a database lead: it takes a lease, renews it,
// and stops before the lease ends.
package election

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone/internal/server/records"
)

// A Lease is that of a database: see records.Lease. Its time is the database's.
type Lease interface {
	Take(ctx context.Context, holder, address string, life time.Duration) (t records.Term,
		taken bool, err error)
	Renew(ctx context.Context, fence int64, life time.Duration) (bool, error)
	End(ctx context.Context, fence int64) error
}

// Options are the parts of an election.
type Options struct {
	Lease           Lease
	Holder, Address string        // of this controller, as others see them
	Life            time.Duration // of the lease after each renewal
	// Serve leads until its context ends, and returns soon then. An error ends the term.
	Serve func(ctx context.Context, t *Term) error
	// Waits is told of each term of another controller that is seen; nil: nobody is.
	Waits func(t records.Term)
	Log   *slog.Logger
}

// A Term is the time in which this controller leads.
type Term struct {
	Fence int64
	until atomic.Pointer[moment]
}

// moment is a time by the clock that never jumps and by the wall clock: the first one stands still
// while a machine sleeps.
type moment struct {
	steady time.Time
	wall   time.Time
}

// Valid reports whether the term lasts, without a question to anybody.
func (t *Term) Valid() bool { return t.left() > 0 }

func (t *Term) left() time.Duration {
	m, now := t.until.Load(), time.Now()
	return min(m.steady.Sub(now), m.wall.Sub(now.Round(0)))
}

// last sets the end of the term. The lease began or was renewed after the time asked, so it lasts
// beyond asked+life. A fifth of its life remains for the clocks' differences and for the end.
func (t *Term) last(asked time.Time, life time.Duration) {
	end := asked.Add(life - life/5)
	t.until.Store(&moment{end, end.Round(0)})
}

// Run waits for the lease, leads, and waits again, until ctx ends.
func Run(ctx context.Context, o Options) {
	seen, failed := records.Term{}, false
	for ctx.Err() == nil {
		asked := time.Now()
		call, end := context.WithTimeout(ctx, o.Life)
		t, taken, err := o.Lease.Take(call, o.Holder, o.Address, o.Life)
		end()
		wait := o.Life / 4
		switch {
		case ctx.Err() != nil:
			if taken {
				o.resign(ctx, t.Fence)
			}
			return
		case err != nil:
			if !failed {
				o.Log.Warn("the database of the controllers does not answer; trying again", "error", err)
			}
			failed = true
		case taken:
			failed = false
			o.lead(ctx, t, asked)
		default:
			if failed || t.Fence != seen.Fence {
				o.Log.Info("waiting as a standby; another controller leads", "leader", t.Holder,
					"address", t.Address, "fence", t.Fence)
			}
			if o.Waits != nil {
				o.Waits(t)
			}
			seen, failed = t, false
			wait = min(wait, t.Left+time.Millisecond)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// lead serves in a term until the term ends or ctx does.
func (o *Options) lead(ctx context.Context, t records.Term, asked time.Time) {
	term := &Term{Fence: t.Fence}
	term.last(asked, o.Life)
	o.Log.Info("this controller leads", "fence", t.Fence)
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	served := make(chan error, 1)
	go func() { served <- o.Serve(serving, term) }()
	kept := make(chan error, 1)
	go func() { kept <- o.keep(serving, term) }()
	select {
	case err := <-served: // by itself, or because ctx ended
		stop(nil)
		<-kept
		if err != nil && ctx.Err() == nil {
			o.Log.Error("this controller cannot lead", "fence", t.Fence, "error", err)
		}
	case err := <-kept:
		stop(err)
		if ctx.Err() == nil {
			o.Log.Warn("this controller no longer leads", "fence", t.Fence, "error", err)
		}
		if err := <-served; err != nil && ctx.Err() == nil {
			o.Log.Info("the term of this controller has ended", "fence", t.Fence, "error", err)
		}
	}
	o.resign(ctx, t.Fence)
}

// resign ends a term that nobody serves. Without an answer it ends by itself.
func (o *Options) resign(ctx context.Context, fence int64) {
	call, end := context.WithTimeout(context.WithoutCancel(ctx), o.Life/3)
	defer end()
	if err := o.Lease.End(call, fence); err != nil {
		o.Log.Debug("the lease cannot be ended; it ends by itself", "error", err)
	}
}

// Errors that end a term.
var (
	errTaken = errors.New("another controller has taken the lease")
	errOver  = errors.New("the database has not renewed the lease in time")
)

// keep renews the lease until ctx or the term ends.
func (o *Options) keep(ctx context.Context, t *Term) error {
	wait := o.Life / 3
	for {
		// The end comes by this clock, whatever a call does.
		over := time.NewTimer(t.left())
		renewal := time.NewTimer(min(wait, t.left()))
		select {
		case <-ctx.Done():
		case <-over.C:
		case <-renewal.C:
		}
		over.Stop()
		renewal.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		left := t.left()
		if left <= 0 {
			return errOver
		}
		asked := time.Now()
		call, end := context.WithTimeout(ctx, left)
		ok, err := o.Lease.Renew(call, t.Fence, o.Life)
		end()
		switch {
		case err == nil && !ok:
			return errTaken
		case err != nil:
			o.Log.Debug("the lease is not renewed; trying again", "error", err)
			wait = o.Life / 20
		default:
			t.last(asked, o.Life)
			wait = o.Life / 3
		}
	}
}
