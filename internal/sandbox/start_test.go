package sandbox

import (
	"sync"
	"sync/atomic"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestSlots checks that no more sandboxes run concurrently than the limit allows.
func TestSlots(t *testing.T) {
	l := New(&statedir.Dir{Root: t.TempDir()})
	var held []*statedir.Lock
	for range 3 {
		lock, err := l.slot(3)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lock)
	}
	if _, err := l.slot(3); turnstone.KindOf(err) != turnstone.KindExhausted ||
		turnstone.HintOf(err) == "" {
		t.Errorf("a fourth: %v", err)
	}
	held[1].Release()
	if lock, err := l.slot(3); err != nil || lock == nil {
		t.Errorf("after one ended: %v", err)
	}
}

// ending is a machine that takes no time to end.
type ending struct {
	substrate.Sandbox
	closed *atomic.Int32
}

func (e ending) Close() error {
	e.closed.Add(1)
	return nil
}

func (ending) Done() <-chan struct{} { return nil }

// TestManyEnd: sandboxes begin to end while others wait for the ends of those before.
func TestManyEnd(t *testing.T) {
	l := New(&statedir.Dir{Root: t.TempDir()})
	var closed atomic.Int32
	const turns, each = 8, 500
	var wg sync.WaitGroup
	for range turns {
		wg.Go(func() {
			for range each {
				(&Sandbox{launcher: l, machine: ending{closed: &closed}}).CloseSoon()
				l.Wait()
			}
		})
	}
	wg.Wait()
	if l.Wait(); closed.Load() != turns*each {
		t.Errorf("%d have ended", closed.Load())
	}
}
