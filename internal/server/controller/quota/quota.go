// Package quota decides whether a tenant may begin something more, by what it has now.
package quota

import (
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/controller/usage"
)

// Limits bound what a tenant has at one time, over all nodes. 0 bounds nothing.
type Limits struct {
	Sandboxes    int
	CPUs         int             // of sandboxes and running turns together
	Memory, Disk turnstone.Bytes // the same
	Stored       turnstone.Bytes // by sessions and snapshots
	Sent         turnstone.Bytes // by machines, since the day (UTC) began
	Turns        int             // started in a minute
}

// A Want is what a tenant asks for.
type Want struct {
	Sandboxes int
	Each      turnstone.Machine // of the sandboxes, or of the turn
	Turn      bool
	Stores    bool // it will occupy more than now
}

// A Book has the limits of all tenants. Its methods are safe for concurrent use.
type Book struct {
	of func(tenant string) Limits

	mu    sync.Mutex
	turns map[string]*rate.Limiter
}

// New returns a book. of returns the limits of a tenant; nil: there are none.
func New(of func(tenant string) Limits) *Book {
	if of == nil {
		of = func(string) Limits { return Limits{} }
	}
	return &Book{of: of, turns: make(map[string]*rate.Limiter)}
}

// Check returns an error of kind Exhausted if a tenant that has what it has may not have more. It
// names the limit, the use and the setting.
func (b *Book) Check(tenant string, has usage.Standing, w Want) error {
	l := b.of(tenant)
	n := uint64(max(w.Sandboxes, 0))
	if w.Turn {
		n = 1
	}
	number := func(x uint64) string { return fmt.Sprint(x) }
	size := func(x uint64) string { return turnstone.Bytes(min(x, math.MaxInt64)).Human() }
	for _, x := range []struct {
		limit      uint64
		has, wants uint64
		what       string
		text       func(uint64) string
		do         string
		setting    string
	}{
		{uint64(l.Sandboxes), has.Held, uint64(max(w.Sandboxes, 0)), "sandboxes", number,
			"remove a sandbox", "sandboxes"},
		{uint64(l.CPUs), has.CPUs, n * uint64(w.Each.CPUs), "CPUs of machines", number,
			"remove a sandbox, or wait for the end of a turn", "cpus"},
		{uint64(l.Memory), has.Memory, n * uint64(w.Each.Memory), "memory of machines", size,
			"remove a sandbox, or wait for the end of a turn", "memory"},
		{uint64(l.Disk), has.Disk, n * uint64(w.Each.Disk), "disk of machines", size,
			"remove a sandbox, or wait for the end of a turn", "disk"},
		{uint64(l.Stored), has.Stored, stores(w), "stored bytes", size,
			"remove sessions or snapshots", "stored"},
	} {
		if x.limit > 0 && x.wants > 0 && (x.wants > x.limit || x.has > x.limit-x.wants) {
			return turnstone.Errorf("quota.check", turnstone.KindExhausted, "tenant "+tenant,
				"the limit of its %s is %s, of which %s are in use, and this wants %s", x.what,
				x.text(x.limit), x.text(x.has), x.text(x.wants)).
				WithHint(x.do + ", or let the server's operator raise " + x.setting +
					" in [quota] or the tenant's [[tenants]]")
		}
	}
	if l.Sent > 0 && n > 0 && has.Sent >= uint64(l.Sent) {
		return turnstone.Errorf("quota.check", turnstone.KindExhausted, "tenant "+tenant,
			"its machines have sent %s since 00:00 UTC, and the limit is %s", size(has.Sent),
			size(uint64(l.Sent))).WithHint("wait for the next day, or let the server's operator " +
			"raise bytes_out in [quota] or the tenant's [[tenants]]")
	}
	return nil
}

func stores(w Want) uint64 {
	if w.Stores {
		return 1
	}
	return 0
}

// TakeTurn counts a turn that starts. The error is of kind Exhausted if the tenant has started too
// many in a minute, and says when to try again. It counts time that passes, whatever the clock
// shows.
func (b *Book) TakeTurn(tenant string) error {
	per := b.of(tenant).Turns
	if per == 0 {
		return nil
	}
	b.mu.Lock()
	l := b.turns[tenant]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(float64(per)/60), per)
		b.turns[tenant] = l
	}
	b.mu.Unlock()
	if l.Allow() {
		return nil
	}
	return &api.Status{RetryAfter: max(time.Second, time.Minute/time.Duration(per)),
		Err: turnstone.Errorf("quota.check", turnstone.KindExhausted, "tenant "+tenant,
			"has started %d turns in a minute, which is the limit", per).
			WithHint("try again later, or let the server's operator raise turns in [quota] or the " +
				"tenant's [[tenants]]")}
}
