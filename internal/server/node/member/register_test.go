package member

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestEnd: a node that ends waits until the controller knows it, but not for one that is away, and is registered again and
// again while its turns end.
func TestEnd(t *testing.T) {
	for _, tt := range []struct {
		name   string
		away   bool          // the controller, all the time
		takes  time.Duration // the answer, from the end on
		before time.Duration // the end, after the start
		want   time.Duration // the wait of the end
		said   bool          // the controller knows the end then
	}{
		{name: "between two calls", before: 2 * time.Second, said: true},
		{name: "the controller is slow", before: 2 * time.Second, takes: time.Second, want: time.Second, said: true},
		{name: "it does not answer any more", before: 2 * time.Second, takes: time.Hour, want: tellTime},
		{name: "it is away", before: 2 * time.Second, away: true},
		{name: "before the first answer"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ending, known atomic.Bool
			var calls atomic.Int64
			r := newRegistration(func(ctx context.Context) error {
				calls.Add(1)
				if tt.away {
					return errors.New("away")
				}
				says := ending.Load()
				if says {
					select {
					case <-time.After(tt.takes):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				if says {
					known.Store(true)
				}
				return nil
			}, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			if tt.before > 0 {
				go func() { defer close(done); r.run(ctx) }()
				time.Sleep(tt.before)
			} else {
				close(done) // it has not begun
			}
			began := time.Now()
			ending.Store(true)
			r.end(ctx)
			if took := time.Since(began); took != tt.want || known.Load() != tt.said {
				t.Errorf("%s: the end took %v, not %v, and the controller knows it: %v", tt.name, took, tt.want, known.Load())
			}
			at := calls.Load()
			time.Sleep(3 * registerEvery)
			if n := calls.Load() - at; tt.said && n < 2 {
				t.Errorf("%s: it is registered %d times while it ends", tt.name, n)
			}
			cancel()
			<-done
		})
	}
}
