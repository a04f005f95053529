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

// callers are the callers with connections, and the token that each showed last: one that was
// renewed counts for connections that an earlier token opened. It is safe for concurrent use.
type callers struct {
	mu          sync.Mutex
	all         map[string]*caller
	connections map[string]string // the caller of each
}

type caller struct {
	token atomic.Pointer[string]
	uses  int
}

// enter returns the token of a caller who opens a place, until leave.
func (c *callers) enter(name, token string) *atomic.Pointer[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]*caller{}
	}
	one := c.all[name]
	if one == nil {
		one = &caller{}
		c.all[name] = one
	}
	one.uses++
	one.token.Store(&token)
	return &one.token
}

func (c *callers) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[name]; one != nil {
		if one.uses--; one.uses == 0 {
			delete(c.all, name)
		}
	}
}

// show notes the token of a verified caller.
func (c *callers) show(name, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[name]; one != nil {
		one.token.Store(&token)
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
