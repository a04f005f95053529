package fleet

import (
	"testing"
	"time"
)

// TestTurn: an old holder can do nothing, and a turn that may starts again once.
func TestTurn(t *testing.T) {
	const life = 30 * time.Second
	row := Turn{State: TurnWaits, Retry: true}
	first, why := row.Begin(0, life, "a")
	if why != "" {
		t.Fatal(why)
	}
	if _, why := row.Begin(1, life, "b"); why != NotWaiting {
		t.Error(why)
	}
	if why := row.Renew(10*time.Second, life, first); why != "" || row.Until != 40*time.Second {
		t.Error(why, row.Until)
	}
	if why := row.Renew(41*time.Second, life, first); why != TooLate {
		t.Error(why)
	}
	if row.Reap(39*time.Second) || !row.Reap(40*time.Second) || row.State != TurnWaits {
		t.Error(row)
	}
	if why := row.Commit(first); why != OldFence {
		t.Error(why)
	}
	second, _ := row.Begin(41*time.Second, life, "b")
	if second <= first {
		t.Error("the fence did not grow")
	}
	if why := row.Commit(first); why != OldFence {
		t.Error(why)
	}
	if !row.Reap(90*time.Second) || row.State != TurnInterrupted {
		t.Errorf("it began twice and starts again: %v", row)
	}
	row = Turn{State: TurnWaits}
	fence, _ := row.Begin(0, life, "a")
	if why := row.Commit(fence); why != "" || row.State != TurnCommitted {
		t.Error(why)
	}
	if why := row.Commit(fence); why != NotHeld {
		t.Error(why)
	}
	if row.Reap(time.Hour) || row.Cancel() {
		t.Error("a committed turn changed")
	}
}

// TestStop: the slowest holder stops before the fastest database ends its lease.
func TestStop(t *testing.T) {
	const life = 30 * time.Second
	for _, slow := range []float64{1, 0.97, 0.95} {
		stops := float64(StopAt(0, life)) / slow
		if ends := float64(life) / (2 - slow); stops > ends {
			t.Errorf("with a clock of speed %.2f the holder stops after %.1f s, and the lease ends "+
				"after %.1f s", slow, stops/1e9, ends/1e9)
		}
		if RenewAt(0, life) > StopAt(0, life)/2 {
			t.Error("there is no time to repeat a renewal")
		}
	}
}
