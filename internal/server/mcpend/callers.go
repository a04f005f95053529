package mcpend

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/internal/server/auth"
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
	shown    map[connection]*shown
	starting map[string]int // connections of a caller that have no ID yet
	requests map[string]int // of a caller, at one time
}

// A connection is one of a verified caller. Only the pair counts: anybody can name an ID. Or it is what
// requests with one token have where the protocol has no connections: a party, and no ID.
type connection struct{ caller, id, party string }

// A shown is what a connection's requests have shown.
type shown struct {
	token atomic.Pointer[string]
	// the callers guard these:
	open int       // requests that are not answered, streams included
	last time.Time // the end of the last request
	gone bool      // its stream was closed: many clients end a connection so
}

// token returns the latest token of a connection; nil: there is no such connection.
func (c *callers) token(of connection) *atomic.Pointer[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.shown[of]; one != nil {
		return &one.token
	}
	return nil
}

// show notes the token of a request, whose caller is verified.
func (c *callers) show(of connection, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.shown[of]; one != nil {
		one.token.Store(&token)
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
		case of.party != "":
			continue
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
	if of.id != "" {
		c.put(of, token)
	}
}

// add notes a party.
func (c *callers) add(of connection, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(of, token)
}

func (c *callers) put(of connection, token string) {
	if c.shown == nil {
		c.shown = map[connection]*shown{}
	}
	one := &shown{last: time.Now()}
	one.token.Store(&token)
	c.shown[of] = one
}

// silent takes away the connection that makes room for another one of a caller: of those without a
// request since a time, or whose client has gone, and without work, the one that was silent for
// longest. It is the caller's own one if these are too many.
func (c *callers) silent(name string, working map[string]bool, since time.Time) (connection, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.starting[name]
	for of := range c.shown {
		if of.caller == name && of.party == "" {
			own++
		}
	}
	var oldest connection
	for of, one := range c.shown {
		if of.party != "" || one.open > 0 || working[of.id] ||
			own >= maxOfCaller && of.caller != name || !one.gone && one.last.After(since) {
			continue
		}
		if o := c.shown[oldest]; o == nil || one.last.Before(o.last) {
			oldest = of
		}
	}
	if oldest.id == "" {
		return oldest, false
	}
	delete(c.shown, oldest)
	return oldest, true
}

// all returns the connections with their latest tokens.
func (c *callers) all() map[connection]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[connection]string, len(c.shown))
	for of, one := range c.shown {
		all[of] = *one.token.Load()
	}
	return all
}

// enter takes the place of a request of a connection, which leave gives back.
func (c *callers) enter(of connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[of.caller] >= requestsOfCaller {
		return false
	}
	if c.requests == nil {
		c.requests = map[string]int{}
	}
	c.requests[of.caller]++
	if one := c.shown[of]; one != nil {
		one.open++
		one.gone = false
	}
	return true
}

// leave ends a request, such as a stream of events.
func (c *callers) leave(of connection, stream bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[of.caller]--; c.requests[of.caller] == 0 {
		delete(c.requests, of.caller)
	}
	if one := c.shown[of]; one != nil {
		one.open = max(0, one.open-1) // 0: the request began the connection
		one.last, one.gone = time.Now(), stream
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

// bounded refuses requests and new connections beyond the bounds. The others are passed on to
// connections, or to calls if the version of the protocol has no connections.
func (e *Endpoint) bounded(connections, calls http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := mcpauth.TokenInfoFromContext(r.Context())
		of := connectionOf(i)
		if !e.callers.enter(of) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests at one time", http.StatusTooManyRequests)
			return
		}
		defer e.callers.leave(of, r.Method == http.MethodGet)
		switch {
		case of.party != "":
			calls.ServeHTTP(w, r)
			return
		case r.Method != http.MethodPost || of.id != "":
			connections.ServeHTTP(w, r)
			return
		}
		for !e.callers.begin(i.UserID, e.live) {
			if !e.makeRoom(i.UserID) {
				http.Error(w, "too many connections: end one with DELETE", http.StatusTooManyRequests)
				return
			}
		}
		defer func() {
			token, _ := i.Extra[tokenKey].(string)
			of.id = w.Header().Get(sessionHeader)
			e.callers.began(of, token)
		}()
		connections.ServeHTTP(w, r)
	})
}

// makeRoom ends a connection that is silent and has no sandbox, to make room for one of a caller. Many
// clients do not end theirs.
func (e *Endpoint) makeRoom(name string) bool {
	of, found := e.callers.silent(name, e.door.Working(), time.Now().Add(-e.silence))
	if found {
		e.door.End(of.id)
	}
	return found
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
// A token that cannot be verified now stays: its calls are refused. Each token is verified once.
func (e *Endpoint) check(ctx context.Context) {
	type verdict struct {
		p   auth.Principal
		err error
	}
	verified := map[string]verdict{}
	for of, token := range e.callers.all() {
		v, has := verified[token]
		if !has {
			v.p, v.err = e.o.Verifier.Verify(ctx, token)
			verified[token] = v
		}
		if v.err == nil && callerOf(v.p) == of.caller ||
			turnstone.KindOf(v.err) == turnstone.KindUnavailable || ctx.Err() != nil {
			continue
		}
		if of.party != "" {
			e.parties.EndParty(mcpdoor.Party{Caller: of.caller, ID: of.party})
		} else {
			e.door.End(of.id)
		}
	}
}
