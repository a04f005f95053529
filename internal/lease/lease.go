// Package lease has the exclusive rights that end with their holder, such as the right to run a turn:
// on one machine they are locks of files, which the kernel ends, and between machines rows of a
// database with a time to live.
package lease

import (
	"context"
	"database/sql"

	"turnstone.dev/turnstone"
)

// Leases take leases by name. They are safe for concurrent use, also by several processes.
type Leases interface {
	// Take takes the lease called name; nil: somebody has it, also in this process. note is what
	// Holder tells others.
	Take(ctx context.Context, name, note string) (Lease, error)
	// Forsake removes what is left of a lease that nobody holds.
	Forsake(ctx context.Context, name string) error
	// Sweep is Forsake of all leases whose name is asked for, and returns their number.
	Sweep(ctx context.Context, is func(name string) bool) (int, error)
}

// A Lease is held until Release, or until it is lost.
type Lease interface {
	// Check returns an error of kind Unavailable if somebody else has taken the lease. In a
	// transaction that stores what the lease permits, it holds until the transaction's end.
	Check(ctx context.Context, q Querier) error
	// Lost is closed when the work that the lease permits has to stop: its end is near and could not
	// be put off, or somebody else has it. nil: it is never lost.
	Lost() <-chan struct{}
	// Cause is why the lease was lost; nil: it is not. After it, Check may still succeed: then nobody
	// else has the lease, and the end of the work may be stored.
	Cause() error
	// Release ends the lease.
	Release()
}

// A Querier is a transaction.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Context returns a context that is canceled with the lease's Cause when the lease is lost. The
// function releases what the context uses, not the lease.
func Context(ctx context.Context, l Lease) (context.Context, context.CancelFunc) {
	if l == nil || l.Lost() == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-l.Lost():
			cancel(l.Cause())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

const op turnstone.Op = "lease"
