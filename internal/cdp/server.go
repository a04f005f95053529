// Package cdp offers sandboxes as CDP targets: a WebSocket server with the discovery pages of the
// Chrome DevTools Protocol. Stock clients drive a single sandbox over its own connection, or
// several over a single connection with flat sessions. Package loopback admits the requests.
package cdp

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/sandboxes"
)

// A Backend manages the sandboxes, such as a *sandboxes.Store. Its methods are safe for concurrent
// use.
type Backend interface {
	List(ctx context.Context) ([]sandboxes.Info, error)
	Get(id turnstone.SandboxID) (sandboxes.Info, error)
	Dial(ctx context.Context, id turnstone.SandboxID) (net.Conn, error)
	Create(ctx context.Context, spec sandboxes.Spec, progress func(string)) (sandboxes.Info, error)
	Remove(ctx context.Context, id turnstone.SandboxID) error
}

// Options configure a server.
type Options struct {
	Backend Backend
	Token   string       // grants full access; see loopback.NewToken
	Image   string       // default template of new sandboxes
	Host    string       // an additional host name for requests; may be empty
	Log     *slog.Logger // nil: no log
}

const (
	maxConnections = 512 // of all kinds
	maxSockets     = 128 // WebSockets
	maxHeader      = 16 << 10
	headerTime     = 10 * time.Second
	pageTime       = 30 * time.Second // for a whole request other than a WebSocket
	idleTime       = 30 * time.Second
	// writeTime is how long a client or an agent may accept no bytes before it is disconnected.
	writeTime = 30 * time.Second
	// farewellTime bounds the time in which a disconnected side reads the reason.
	farewellTime = time.Second
)

// A Server is a WebSocket server. Its methods are safe for concurrent use.
type Server struct {
	opt       Options
	browser   string // the ID in the path of its browser endpoint
	writeTime time.Duration
	pollTime  time.Duration
	slots     chan struct{}
	creating  chan struct{}

	mu       sync.Mutex
	sockets  map[*socket]struct{} // nil: the server is closing
	attached map[turnstone.SandboxID]int
	wg       sync.WaitGroup
}

// NewServer returns a server; call Serve to start it.
func NewServer(opt Options) *Server {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{opt: opt, browser: rand.Text(), writeTime: writeTime, pollTime: pollTime,
		slots: make(chan struct{}, maxSockets), creating: make(chan struct{}, maxCreating),
		sockets: make(map[*socket]struct{}), attached: make(map[turnstone.SandboxID]int)}
}

// Serve serves l and owns it until ctx ends; it then sends closing frames to all clients and
// returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler: http.HandlerFunc(s.handle), MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       pageTime, WriteTimeout: pageTime, IdleTimeout: idleTime,
		// reports faults of clients
		ErrorLog: slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	err := h.Serve(loopback.Limit(l, maxConnections))
	_ = h.Close()
	s.mu.Lock()
	open := s.sockets
	s.sockets = nil
	s.mu.Unlock()
	for c := range open {
		s.wg.Go(func() { c.leave(goingAway, "the server is shutting down") })
	}
	s.wg.Wait()
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return turnstone.NewError("hub.serve", turnstone.KindUnavailable, l.Addr().String(), err)
}

// attach counts a new session of a sandbox. It returns false if the limit is reached.
func (s *Server) attach(id turnstone.SandboxID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached[id] >= maxAttached {
		return false
	}
	s.attached[id]++
	return true
}

// detach reverts attach.
func (s *Server) detach(id turnstone.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached[id]--; s.attached[id] <= 0 {
		delete(s.attached, id)
	}
}

func (s *Server) isAttached(id turnstone.SandboxID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached[id] > 0
}
