// Package bucket watches whether the bucket of a node's sessions can be used.
package bucket

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob/s3"
)

// The times of a Watch, by this machine's monotonic clock.
const (
	every    = 30 * time.Second // between two requests while the bucket answers
	soon     = 5 * time.Second  // the same after a failure
	longest  = 10 * time.Second // of a request, with its repetitions
	patience = time.Minute      // without a success, until a bucket that answered counts as away
)

// A Watch asks a bucket again and again. Its methods are safe for concurrent use, and a nil Watch is one
// of a node without a bucket.
type Watch struct {
	ask   func(context.Context) error
	log   *slog.Logger
	known chan struct{} // closed after the first answer or failure

	mu     sync.Mutex
	here   bool      // it counts as one that answers
	away   error     // of the last request; nil: it succeeded
	failed time.Time // the first failure since the last success
}

// Open returns a watch of the bucket at the URL of a store; nil: the store is no bucket. Run it.
func Open(store string, log *slog.Logger) (*Watch, error) {
	if store == "" {
		return nil, nil
	}
	o, err := s3.ParseURL(store)
	if err != nil {
		return nil, err
	}
	at, err := s3.Open(o)
	if err != nil {
		return nil, err
	}
	return New(func(ctx context.Context) error {
		// Owners of the place, of which there are few: one request, which needs the rights that turns need.
		for _, err := range at.List(ctx, "homes/") {
			return err
		}
		return nil
	}, log), nil
}

// New returns a watch of what ask asks.
func New(ask func(context.Context) error, log *slog.Logger) *Watch {
	return &Watch{ask: ask, log: log, known: make(chan struct{}), away: errors.New("it was not asked yet")}
}

// Run asks until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for w != nil {
		call, cancel := context.WithTimeout(ctx, longest)
		err := w.ask(call)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := every
		if w.note(time.Now(), err); err != nil {
			wait = soon
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// note takes the end of a request. One success is enough to count as here, and only failures for as long
// as patience count as away, except at the start.
func (w *Watch) note(now time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.failed.IsZero() && !w.here
	was := w.here
	switch {
	case err == nil:
		w.here, w.failed = true, time.Time{}
	case w.failed.IsZero():
		w.failed = now
	case now.Sub(w.failed) >= patience:
		w.here = false
	}
	w.away = err
	switch {
	case !w.here && (was || first):
		w.log.Warn("the bucket of sessions cannot be used: this node takes no turns until it can", "error", err,
			"hint", turnstone.HintOf(err))
	case w.here && !was && !first:
		w.log.Info("the bucket of sessions can be used again")
	}
	if first {
		close(w.known)
	}
}

// Known returns a channel that is closed once the bucket has answered, or has not.
func (w *Watch) Known() <-chan struct{} {
	if w == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return w.known
}

// Away returns why the bucket cannot be used; nil: it can, or there is none.
func (w *Watch) Away() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.here {
		return nil
	}
	return w.away
}

// Reason returns why the bucket cannot be used in words for callers, which name no place; empty: it can,
// or there is none.
func (w *Watch) Reason() string {
	err := w.Away()
	var typed *turnstone.Error
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &typed):
		return "it does not answer"
	case typed.Kind == turnstone.KindNotFound:
		return "it does not exist"
	case s3.Refused(err):
		return "it refuses the node's requests"
	}
	return "it does not answer"
}
