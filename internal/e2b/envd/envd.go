// Package envd answers what E2B's clients ask the daemon of a sandbox: processes, files, links. It
// translates each call to the wire of the sandbox's agent. It authenticates nobody: whoever serves it
// has found the sandbox that a request is about.
package envd

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b/envdapi/filesystem/filesystemconnect"
	"turnstone.dev/turnstone/internal/e2b/envdapi/process/processconnect"
	"turnstone.dev/turnstone/wire"
)

// A Box is a sandbox that runs.
type Box struct {
	ID      turnstone.SandboxID
	Tenant  string // whose it is
	User    string // of commands that name none; empty: root
	Workdir string // of commands that name none, and of relative paths
	// Open opens a connection to the sandbox's agent. The caller closes it.
	Open func(ctx context.Context) (io.ReadWriteCloser, error)
	// Gone reports, after a call has failed, whether the reason is that the sandbox has ended or is
	// paused. nil: it is not.
	Gone func(ctx context.Context) bool
}

type boxKey struct{}

// NewContext returns a context for requests about a sandbox.
func NewContext(ctx context.Context, b *Box) context.Context {
	return context.WithValue(ctx, boxKey{}, b)
}

// box returns the sandbox of NewContext.
func box(ctx context.Context) (*Box, error) {
	b, ok := ctx.Value(boxKey{}).(*Box)
	if !ok {
		return nil, turnstone.Errorf("e2b.call", turnstone.KindNotFound, "the sandbox", "was not found")
	}
	return b, nil
}

// open opens a connection to the agent of the request's sandbox.
func open(ctx context.Context, o wire.Options) (*wire.Conn, *Box, error) {
	b, err := box(ctx)
	if err != nil {
		return nil, nil, err
	}
	stream, err := b.Open(ctx)
	if kindOf(err) == turnstone.KindNotFound {
		err = turnstone.NewError("e2b.open", turnstone.KindDead, "the sandbox", err)
	}
	if err != nil {
		return nil, b, err
	}
	return wire.NewConn(stream, o), b, nil
}

// maxMessage bounds a message of a caller in bytes.
const maxMessage = 4 << 20

// A Service is safe for concurrent use. Close it.
type Service struct {
	watchers *watchers
	timers   *timers
}

// New returns a service.
func New() *Service { return &Service{watchers: newWatchers(), timers: newTimers()} }

// Close ends all watches, and forgets the ends of commands that are due later.
func (s *Service) Close() error {
	s.watchers.close()
	s.timers.close()
	return nil
}

// Handler serves requests whose context has a sandbox.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	options := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage),
		connect.WithInterceptors(translated{})}
	mux.Handle(processconnect.NewProcessHandler(processes{s}, options...))
	mux.Handle(filesystemconnect.NewFilesystemHandler(files{s}, options...))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /files", plain(download))
	mux.HandleFunc("POST /files", plain(upload))
	mux.HandleFunc("GET /metrics", plain(metrics))
	mux.HandleFunc("GET /envs", plain(func(w http.ResponseWriter, _ *http.Request) error {
		answer(w, http.StatusOK, map[string]string{})
		return nil
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		Refuse(w, http.StatusNotFound, "the sandbox's daemon has no "+clip(r.URL.Path))
	})
	return mux
}

// clip shortens a text of a caller for a message.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// metrics answers what the sandbox uses now.
func metrics(w http.ResponseWriter, r *http.Request) error {
	m, err := Measure(r.Context())
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, map[string]any{"ts": time.Now().Unix(), "mem_total": m.MemoryTotal,
		"mem_used": m.MemoryTotal - m.MemoryAvailable, "disk_total": m.DiskTotal,
		"disk_used": m.DiskTotal - m.DiskFree})
	return nil
}

// Measure returns what the sandbox of a context uses now.
func Measure(ctx context.Context) (*wire.SandboxGetStatsResult, error) {
	c, _, err := open(ctx, wire.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.SandboxGetStats(ctx)
}
