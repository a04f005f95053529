package ui

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/internal/ui/web"
)

// Options configure a server.
type Options struct {
	Place Place
	Guard loopback.Guard
	Log   *slog.Logger // gets no contents and no token; nil: no log
}

const (
	maxConnections = 64
	maxCalls       = 16 // requests that work at one time
	maxHeader      = 16 << 10
	maxBody        = 2 << 20
	headerTime     = 10 * time.Second
	readTime       = time.Minute
	writeTime      = 10 * time.Minute // a comparison of large states takes long
	idleTime       = 2 * time.Minute
)

// A Server serves the page. Its methods are safe for concurrent use.
type Server struct {
	place Place
	guard loopback.Guard
	log   *slog.Logger
	mux   *http.ServeMux
	slots chan struct{}
	jobs  *jobs
}

// New returns a server; call Serve to start it.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{place: o.Place, guard: o.Guard, log: o.Log, mux: http.NewServeMux(),
		slots: make(chan struct{}, maxCalls), jobs: newJobs()}
	s.mux.Handle("GET /{$}", file("text/html; charset=utf-8", web.Page))
	s.mux.Handle("GET /app.js", file("text/javascript; charset=utf-8", web.Script))
	s.mux.Handle("GET /app.css", file("text/css; charset=utf-8", web.Style))
	s.routes()
	return s
}

// Serve serves l and owns it until ctx ends. Then it cancels what the page has started, waits for
// its end, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler: s, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTime,
		ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		// reports faults of clients
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	err := h.Serve(loopback.Limit(l, maxConnections))
	_ = h.Close()
	s.jobs.close()
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return turnstone.NewError("ui.serve", turnstone.KindUnavailable, l.Addr().String(), err)
}

// policy lets the page run and show what this server sends, and nothing else: no inline script or
// style, no picture, no frame around the page, and no text that becomes markup (Trusted Types).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store", // the data is that of one person and one start
	} {
		w.Header().Set(name, value)
	}
	path, ok := s.guard.Admit(w, r)
	if !ok {
		return
	}
	// Browsers say where a request comes from. A link on another site may open the page, and no site
	// may use the rest.
	if site := r.Header.Get("Sec-Fetch-Site"); path != "/" && site != "" && site != "same-origin" &&
		site != "none" {
		http.Error(w, "web pages may not use this server", http.StatusForbidden)
		return
	}
	inner := r.Clone(r.Context())
	inner.URL.Path, inner.URL.RawPath = path, ""
	s.mux.ServeHTTP(w, inner)
}

// file serves a file of the page.
func file(kind string, data []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data) // a client that is gone
	})
}
