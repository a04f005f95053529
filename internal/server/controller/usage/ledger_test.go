package usage

import (
	"testing"
	"time"
)

// TestToday: the next day begins at zero, and a clock that goes back begins none.
func TestToday(t *testing.T) {
	var l Ledger
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	l.today("a", now).bytes += 5
	for _, x := range []struct {
		at   time.Time
		want uint64
	}{{now, 5}, {now.Add(-48 * time.Hour), 5}, {now.Add(11 * time.Hour), 5}, {now.Add(12 * time.Hour), 0}} {
		if got := l.today("a", x.at).bytes; got != x.want {
			t.Errorf("%s: %d, not %d", x.at, got, x.want)
		}
	}
	if l.today("b", now).bytes != 0 {
		t.Error("tenants share a count")
	}
}
