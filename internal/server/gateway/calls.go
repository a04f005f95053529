package gateway

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/auth"
)

// A call is a request or a channel of an authenticated caller.
type call struct {
	principal auth.Principal
	// resumable says that the client can continue it elsewhere without loss, such as a watch.
	resumable bool

	// Guarded by calls.mu.
	cancel   context.CancelCauseFunc
	detached bool // it outlives its request
}

// callKey finds a request's call in its context.
type callKey struct{}

// calls are all running calls. It ends those whose token no longer holds.
type calls struct {
	verifier Verifier
	per      int // calls of a token

	mu     sync.Mutex
	all    map[*call]struct{}
	count  map[tokenKey]int
	ending bool
	empty  chan struct{} // closed when none is left after the end; nil before the end
}

func newCalls(v Verifier, per int) *calls {
	return &calls{verifier: v, per: per, all: map[*call]struct{}{}, count: map[tokenKey]int{}}
}

func keyOf(p auth.Principal) tokenKey { return tokenKey{p.Issuer, p.TokenID} }

// begin returns the context of a call, which ends with a Status as its cause when the token ends.
func (c *calls) begin(ctx context.Context, p auth.Principal, resumable bool) (
	context.Context, func(), error) {
	k := keyOf(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil, nil, ending()
	}
	if k.issuer != "" && c.count[k] >= c.per { // the operator has no token
		return nil, nil, &api.Status{RetryAfter: time.Second,
			Err: turnstone.Errorf("gateway.limit", turnstone.KindExhausted, "the token",
				"has %d requests and channels at one time, which is the limit", c.per).
				WithHint("end some of them, or use several tokens")}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	one := &call{principal: p, resumable: resumable, cancel: cancel}
	c.all[one] = struct{}{}
	c.count[k]++
	return context.WithValue(ctx, callKey{}, one), func() { c.over(one) }, nil
}

// over ends a call with its request, unless it is detached.
func (c *calls) over(one *call) {
	c.mu.Lock()
	detached := one.detached
	c.mu.Unlock()
	if !detached {
		one.cancel(nil)
		c.remove(one)
	}
}

// detach makes the call of a request outlive it, in a context of its own; the call ends with the
// function that is returned.
func (c *calls) detach(request context.Context) (context.Context, func()) {
	one, _ := request.Value(callKey{}).(*call)
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancelCause(context.Background())
	if why := context.Cause(request); why != nil {
		cancel(why)
	}
	one.cancel(nil)
	one.cancel, one.detached = cancel, true
	return ctx, func() { cancel(nil); c.remove(one) }
}

func (c *calls) remove(one *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, one)
	k := keyOf(one.principal)
	if c.count[k]--; c.count[k] <= 0 {
		delete(c.count, k)
	}
	if c.ending && len(c.all) == 0 {
		c.close()
	}
}

func (c *calls) close() {
	select {
	case <-c.empty:
	default:
		close(c.empty)
	}
}

// watch ends calls whose token no longer holds, until ctx ends.
func (c *calls) watch(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.check()
		}
	}
}

// check ends calls whose token no longer holds. A token is checked once, however many calls it has.
func (c *calls) check() {
	c.mu.Lock()
	of := make(map[tokenKey][]*call, len(c.count))
	for one := range c.all {
		of[keyOf(one.principal)] = append(of[keyOf(one.principal)], one)
	}
	c.mu.Unlock()
	for _, some := range of {
		if err := c.verifier.Still(some[0].principal); err != nil {
			c.mu.Lock()
			for _, one := range some {
				one.cancel(refusal(err))
			}
			c.mu.Unlock()
		}
	}
}

// end refuses new calls, and ends the running ones; with grace, only the resumable ones. The
// channel is closed when none is left.
func (c *calls) end(grace bool) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ending {
		c.ending, c.empty = true, make(chan struct{})
	}
	for one := range c.all {
		if !grace || one.resumable {
			one.cancel(ending())
		}
	}
	if len(c.all) == 0 {
		c.close()
	}
	return c.empty
}

func ending() error {
	return &api.Status{RetryAfter: time.Second, Err: turnstone.Errorf("gateway.end",
		turnstone.KindUnavailable, "the server", "is about to end").
		WithHint("try again; another server may answer, or this one after its restart")}
}

// refusal returns the error for a caller whose token was refused.
func refusal(err error) error {
	reason := auth.ReasonOf(err)
	s := &api.Status{Reason: string(reason), Err: err}
	switch {
	case reason.Unauthenticated():
		s.Code = connect.CodeUnauthenticated
	case reason == auth.Denied:
		s.Code = connect.CodePermissionDenied
	case reason == auth.Stale:
		s.RetryAfter = 5 * time.Second
	}
	return s
}

// refusing reports that the gateway takes no new calls.
func (c *calls) refusing() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return ending()
	}
	return nil
}
