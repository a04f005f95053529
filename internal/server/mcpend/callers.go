package mcpend

import (
	"net/http"
	"sync"
	"sync/atomic"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
)

// Bounds of connections.
const (
	maxConnections = 500
	maxOfCaller    = 32
)

// sessionHeader names the connection of a request.
const sessionHeader = "Mcp-Session-Id"

// callers are the callers with connections, and the token that each connection's caller showed there
// last: one that was renewed counts for a connection that an earlier token opened. Tokens of one
// subject may grant more and less, so none counts for another connection. It is safe for concurrent
// use.
type callers struct {
	mu          sync.Mutex
	shown       map[connection]*atomic.Pointer[string] // of those with a place
	connections map[string]string                      // the caller of each
}

// A connection is one of a verified caller. Only the pair counts: anybody can name an ID.
type connection struct{ caller, id string }

// enter returns the token of a connection that opens its place, until leave.
func (c *callers) enter(of connection, token string) *atomic.Pointer[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shown == nil {
		c.shown = map[connection]*atomic.Pointer[string]{}
	}
	one := &atomic.Pointer[string]{}
	one.Store(&token)
	c.shown[of] = one
	return one
}

func (c *callers) leave(of connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.shown, of)
}

// show notes the token of a request, whose caller is verified.
func (c *callers) show(of connection, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.shown[of]; one != nil {
		one.Store(&token)
	}
}

// begin reserves the place of a new connection of a caller, among those that live.
func (c *callers) begin(name string, live map[string]bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := 0
	for id, of := range c.connections {
		if !live[id] {
			delete(c.connections, id)
		} else if of == name {
			own++
		}
	}
	return len(live) < maxConnections && own < maxOfCaller
}

// began notes the caller of a connection.
func (c *callers) began(id, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connections == nil {
		c.connections = map[string]string{}
	}
	c.connections[id] = name
}

// bounded refuses new connections beyond the bounds.
func (e *Endpoint) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Header.Get(sessionHeader) != "" {
			next.ServeHTTP(w, r)
			return
		}
		live := map[string]bool{}
		for s := range e.door.Server().Sessions() {
			live[s.ID()] = true
		}
		name := mcpauth.TokenInfoFromContext(r.Context()).UserID
		if !e.callers.begin(name, live) {
			http.Error(w, "too many connections: end one with DELETE", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
		if id := w.Header().Get(sessionHeader); id != "" {
			e.callers.began(id, name)
		}
	})
}
