package gateway

import (
	"testing"
	"time"
)

// TestRetriesWithin: with every setting of tokens.revocations, a gateway tries again before it
// refuses all tokens.
func TestRetriesWithin(t *testing.T) {
	for _, stale := range []time.Duration{5 * time.Second, 10 * time.Second, time.Minute, time.Hour} {
		silence := stale / 2
		if r := retriesWithin(silence); r.first+r.last > stale-silence || r.last > lastRetry {
			t.Errorf("%s: %v", stale, r)
		}
	}
}
