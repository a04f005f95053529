package pg_test

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
)

func TestLease(t *testing.T) {
	const at = "postgres://turn@/d?host=/run"
	for text, want := range map[string]time.Duration{at: 0, at + "&lease=90s": 90 * time.Second} {
		if got, err := pg.Lease(text); got != want || err != nil {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "1s", "2h", "-5s", "soon"} {
		if _, err := pg.Lease(at + "&lease=" + bad); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
