package mcpend

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"

	"turnstone.dev/turnstone"
)

// Bounds of connections.
const (
	maxConnections = 500
	maxOfCaller    = 32
	// requestsOfCaller bounds the requests of a caller at one time: each may have a body of maxBody in
	// memory, and a tool that works.
	requestsOfCaller = 128
)

// sessionHeader names the connection of a request.
const sessionHeader = "Mcp-Session-Id"

// callers are the callers with connections, and the token that each connection's caller showed there
// last: one that was renewed counts for a connection that an earlier token opened. Tokens of one
// subject may grant more and less, so none counts for another connection. It is safe for concurrent
// use.
type callers struct {
	mu       sync.Mutex
	shown    map[connection]*atomic.Pointer[string]
	starting map[string]int // connections of a caller that have no ID yet
	requests map[string]int // of a caller, at one time
}

// A connection is one of a verified caller. Only the pair counts: anybody can name an ID.
type connection struct{ caller, id string }

// token returns the latest token of a connection; nil: there is no such connection.
func (c *callers) token(of connection) *atomic.Pointer[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown[of]
}

// show notes the token of a request, whose caller is verified.
func (c *callers) show(of connection, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.shown[of]; one != nil {
		one.Store(&token)
	}
}

// begin reserves the place of a new connection of a caller, which began or failed follows. live
// returns the IDs of the connections that have not ended.
func (c *callers) begin(name string, live func() map[string]bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	there := live()
	all, own := 1, 1
	for of := range c.shown {
		switch {
		case !there[of.id]:
			delete(c.shown, of)
			continue
		case of.caller == name:
			own++
		}
		all++
	}
	for caller, n := range c.starting {
		if all += n; caller == name {
			own += n
		}
	}
	if all > maxConnections || own > maxOfCaller {
		return false
	}
	if c.starting == nil {
		c.starting = map[string]int{}
	}
	c.starting[name]++
	return true
}

// began ends a reservation: the connection has an ID, or there is none if that is empty.
func (c *callers) began(of connection, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starting[of.caller]--; c.starting[of.caller] == 0 {
		delete(c.starting, of.caller)
	}
	if of.id == "" {
		return
	}
	if c.shown == nil {
		c.shown = map[connection]*atomic.Pointer[string]{}
	}
	one := &atomic.Pointer[string]{}
	one.Store(&token)
	c.shown[of] = one
}

// all returns the connections with their latest tokens.
func (c *callers) all() map[connection]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[connection]string, len(c.shown))
	for of, token := range c.shown {
		all[of] = *token.Load()
	}
	return all
}

// enter takes the place of a request of a caller, which leave gives back.
func (c *callers) enter(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[name] >= requestsOfCaller {
		return false
	}
	if c.requests == nil {
		c.requests = map[string]int{}
	}
	c.requests[name]++
	return true
}

func (c *callers) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[name]--; c.requests[name] == 0 {
		delete(c.requests, name)
	}
}

// forget forgets a connection that has ended.
func (c *callers) forget(of connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.shown, of)
}

// live returns the IDs of the connections that have not ended.
func (e *Endpoint) live() map[string]bool {
	live := map[string]bool{}
	for s := range e.door.Server().Sessions() {
		live[s.ID()] = true
	}
	return live
}

// bounded refuses requests and new connections beyond the bounds.
func (e *Endpoint) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := mcpauth.TokenInfoFromContext(r.Context())
		if !e.callers.enter(i.UserID) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests at one time", http.StatusTooManyRequests)
			return
		}
		defer e.callers.leave(i.UserID)
		if r.Method != http.MethodPost || r.Header.Get(sessionHeader) != "" {
			next.ServeHTTP(w, r)
			return
		}
		if !e.callers.begin(i.UserID, e.live) {
			http.Error(w, "too many connections: end one with DELETE", http.StatusTooManyRequests)
			return
		}
		defer func() {
			token, _ := i.Extra[tokenKey].(string)
			e.callers.began(connection{i.UserID, w.Header().Get(sessionHeader)}, token)
		}()
		next.ServeHTTP(w, r)
	})
}

// watch ends connections whose token no longer holds, until ctx ends.
func (e *Endpoint) watch(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			e.check(ctx)
		}
	}
}

// check ends connections whose latest token no longer holds: their streams too, which outlive requests.
// A token that cannot be verified now stays: its calls are refused.
func (e *Endpoint) check(ctx context.Context) {
	for of, token := range e.callers.all() {
		p, err := e.o.Verifier.Verify(ctx, token)
		if err == nil && callerOf(p) == of.caller ||
			turnstone.KindOf(err) == turnstone.KindUnavailable || ctx.Err() != nil {
			continue
		}
		e.door.End(of.id)
	}
}
