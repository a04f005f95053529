package sandbox

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
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
