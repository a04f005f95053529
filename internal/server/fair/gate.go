package fair

import (
	"context"
	"errors"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// Limits bound what waits. Zero values select the defaults.
type Limits struct {
	Each int           // waiting callers of one tenant: 1,000
	All  int           // waiting callers: 10,000
	Wait time.Duration // from Enter to the end of the wait: 1 min
}

// A Gate lets callers in one after the other, in the order of a Queue. Its methods are safe for
// concurrent use.
type Gate struct {
	limits Limits

	mu      sync.Mutex
	queue   Queue[*visitor]
	busy    bool // a visitor has the turn
	changed bool // Wake was called meanwhile
}

// A visitor is a caller that waits.
type visitor struct {
	tenant string
	turn   chan struct{} // has one element when it may try
}

// NewGate returns a gate.
func NewGate(l Limits) *Gate {
	l.setDefaults()
	return &Gate{limits: l}
}

func (l *Limits) setDefaults() {
	if l.Each == 0 {
		l.Each = 1000
	}
	if l.All == 0 {
		l.All = 10_000
	}
	if l.Wait == 0 {
		l.Wait = time.Minute
	}
}

// check reports why another caller of a tenant may not wait in a queue.
func (l *Limits) check(q *Queue[*visitor], tenant string) error {
	if n := q.Of(tenant); n >= l.Each {
		return turnstone.Errorf("queue.wait", turnstone.KindExhausted, "tenant "+tenant,
			"has %d requests that wait for room, which is the limit", n).
			WithHint("start fewer at one time")
	}
	if n := q.Len(); n >= l.All {
		return turnstone.Errorf("queue.wait", turnstone.KindExhausted, "the server",
			"has %d requests that wait for room, which is the limit", n).
			WithHint("try again later")
	}
	return nil
}

// busy is the error about a wait that was too long.
func busy() error {
	return turnstone.Errorf("queue.wait", turnstone.KindExhausted, "the server",
		"has too much to do").WithHint("try again later")
}

// full is an error that time may cure.
type full struct{ error }

func (f full) Unwrap() error { return f.error }

// Full marks the error of a try: there is no room now, and the caller waits for it.
func Full(err error) error { return full{err} }

// Enter runs try when it is the turn of the caller, and again after a Wake as long as try reports
// that there is no room. Tries run one at a time. The cost is shared out fairly: see Queue. Enter
// returns the error of try, without the mark of Full when the caller has waited long enough; an
// error of kind Exhausted if too many wait; or one of kind Canceled. A caller that leaves changes
// nothing for others.
func (g *Gate) Enter(ctx context.Context, tenant string, cost int, try func() error) error {
	v, err := g.join(tenant, cost)
	if err != nil {
		return err
	}
	late := time.NewTimer(g.limits.Wait) // counts time that passes, whatever the clock shows
	defer late.Stop()
	var last error
	for {
		select {
		case <-v.turn:
		case <-ctx.Done():
			g.leave(tenant, v)
			return turnstone.NewError("queue.wait", turnstone.KindCanceled, "the wait",
				context.Cause(ctx))
		case <-late.C:
			g.leave(tenant, v)
			if last == nil {
				last = busy()
			}
			return last
		}
		err := g.attempt(tenant, v, try)
		var wait full
		if !errors.As(err, &wait) {
			return err
		}
		last = wait.error
	}
}

// join puts a caller into the queue.
func (g *Gate) join(tenant string, cost int) (*visitor, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.limits.check(&g.queue, tenant); err != nil {
		return nil, err
	}
	v := &visitor{tenant: tenant, turn: make(chan struct{}, 1)}
	g.queue.Add(tenant, cost, v)
	g.next()
	return v, nil
}

// attempt runs try for the visitor that has the turn, and gives the turn to the next one, also if
// try panics.
func (g *Gate) attempt(tenant string, v *visitor, try func() error) (err error) {
	served := true
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if served {
			g.queue.Remove(tenant, v, err == nil)
		} else if !g.changed { // otherwise the room may be there since
			g.queue.Block(tenant)
		}
		g.busy = false
		g.next()
	}()
	err = try()
	served = !errors.As(err, new(full))
	return err
}

// leave takes a visitor out, whether it has the turn or not.
func (g *Gate) leave(tenant string, v *visitor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.Remove(tenant, v, false)
	select {
	case <-v.turn:
		g.busy = false
	default:
	}
	g.next()
}

// next gives the turn to the visitor that is served next. The caller has g.mu.
func (g *Gate) next() {
	if g.busy {
		return
	}
	if v, ok := g.queue.Next(); ok {
		g.busy, g.changed = true, false
		v.turn <- struct{}{}
	}
}

// Wake says that there may be room.
func (g *Gate) Wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changed = true
	g.queue.Unblock()
	g.next()
}

// Waiting returns the number of callers that wait, or try.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queue.Len()
}
