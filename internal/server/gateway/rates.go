package gateway

import (
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of a table of rates.
const (
	maxRates   = 1 << 16
	sharedRate = 1 << 8
	sweepTime  = time.Second // between two searches for entries that are not needed
)

// A tokenKey is a token that was verified.
type tokenKey struct{ issuer, id string }

// rates limit how often each key comes. The table is bounded: when it is full of keys that have
// come lately, further keys share limits, so nobody gets a fresh limit by filling the table.
type rates[K comparable] struct {
	limit rate.Limit
	burst int
	max   int
	seed  maphash.Seed
	now   func() time.Time

	mu     sync.Mutex
	table  map[K]*rate.Limiter
	shared [sharedRate]*rate.Limiter
	swept  time.Time
}

func newRates[K comparable](perSecond, burst int, now func() time.Time) *rates[K] {
	return &rates[K]{limit: rate.Limit(perSecond), burst: burst, max: maxRates,
		seed: maphash.MakeSeed(), now: now, table: map[K]*rate.Limiter{}}
}

// take takes one request of the key's limit, and returns 0; or it takes none, and returns how long
// the key has to wait.
func (t *rates[K]) take(key K) time.Duration {
	now := t.now()
	r := t.limiter(key, now).ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

func (t *rates[K]) limiter(key K, now time.Time) *rate.Limiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.table[key]; l != nil {
		return l
	}
	if len(t.table) >= t.max && now.Sub(t.swept) >= sweepTime {
		t.swept = now
		for k, l := range t.table {
			if l.TokensAt(now) >= float64(t.burst) { // as good as new
				delete(t.table, k)
			}
		}
	}
	l := rate.NewLimiter(t.limit, t.burst)
	if len(t.table) < t.max {
		t.table[key] = l
		return l
	}
	i := maphash.Comparable(t.seed, key) % sharedRate
	if t.shared[i] == nil {
		t.shared[i] = l
	}
	return t.shared[i]
}
