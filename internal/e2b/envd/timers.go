package envd

import (
	"context"
	"sync"
	"time"

	"turnstone.dev/turnstone/wire"
)

// maxTimers bounds the commands that outlive their callers and have an end; tenants share them. Beyond
// its share, a command ends with its caller.
const maxTimers = 10_000

// timers end commands when the time of the call that started them is up, also if its caller has left
// before.
type timers struct {
	mu     sync.Mutex
	all    map[*time.Timer]struct{}
	shares shares
	closed bool
}

func newTimers() *timers {
	return &timers{all: map[*time.Timer]struct{}{}, shares: shares{most: maxTimers}}
}

// kill returns a function that is called at the end of a call: if the process still runs, it is
// killed when it is due.
func (t *timers) kill(b *Box, process string, due time.Time) func(ended *bool) {
	return func(ended *bool) {
		if *ended {
			return
		}
		end := func() {
			ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
			defer cancel()
			stream, err := b.Open(ctx)
			if err != nil {
				return // the process has ended with its sandbox, or is paused with it
			}
			c := wire.NewConn(stream, wire.Options{})
			defer func() { _ = c.Close() }()
			_ = c.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: "KILL"})
		}
		left := time.Until(due)
		t.mu.Lock()
		if left > 0 && !t.closed && t.shares.take(b.Tenant) {
			var timer *time.Timer
			timer = time.AfterFunc(left, func() {
				t.mu.Lock()
				delete(t.all, timer)
				t.shares.leave(b.Tenant)
				t.mu.Unlock()
				end()
			})
			t.all[timer] = struct{}{}
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		end()
	}
}

func (t *timers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for timer := range t.all {
		timer.Stop()
	}
	clear(t.all)
}
