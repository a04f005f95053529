// Package guard says what keeps batches and sweeps of several machines apart. internal/store/sweeps does
// it with a database.
package guard

import "context"

// Shared coordinates stores on several machines that have the same blobs. A sweep condemns packs: from
// then on new batches do not count their objects as stored. When no batch is open on any machine it
// copies what is needed of them, and notes that they no longer exist; then it deletes them.
// docs/decisions/0033-shared-state.md says why that is safe.
type Shared interface {
	// Enter notes an open batch. What News returns after it, the batch has to respect.
	Enter(ctx context.Context) (Visit, error)
	// News returns the condemned packs that are not removed, those that were removed after the position
	// after, and the newest position.
	News(ctx context.Context, after int64) (condemned, removed [][32]byte, now int64, err error)
	// Known returns those of packs that were ever condemned, and whether they were removed.
	Known(ctx context.Context, packs [][32]byte) (map[[32]byte]bool, error)
	// Sweep calls f, while no other machine sweeps. The context of f ends when that is no longer sure.
	Sweep(ctx context.Context, f func(context.Context, Sweeping) error) error
}

// A Visit is an open batch.
type Visit interface {
	Lost() <-chan struct{} // closed when the batch must not store anything
	Cause() error
	Release()
}

// Sweeping is what the machine that sweeps may do.
type Sweeping interface {
	// Condemn condemns packs, which may be none. Batches that begin later are of the next generation.
	Condemn(ctx context.Context, packs [][32]byte) error
	// Wait waits for the end of all batches of earlier generations.
	Wait(ctx context.Context) error
	// Alone calls f while no batch is open on any machine: it waits for open ones, and new ones wait.
	// The context of f ends when that is no longer sure.
	Alone(ctx context.Context, f func(context.Context) error) error
	// Removed notes, in f of Alone, that packs no longer exist, and fails unless this machine sweeps
	// and is alone. After it nobody uses the packs, and anybody may delete them at any time.
	Removed(ctx context.Context, packs [][32]byte) error
}
