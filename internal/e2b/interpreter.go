package e2b

import (
	"context"
	"net/http"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b/envd"
	"turnstone.dev/turnstone/wire"
)

// The program of the template code-interpreter that speaks to Jupyter kernels, and how long it may
// take to listen.
const (
	interpreterProgram = "/usr/local/lib/turnstone/code_interpreter.py"
	interpreterStart   = 2 * time.Minute
	interpreterPause   = 50 * time.Millisecond
)

// serveInterpreter answers a request to the code interpreter of a sandbox, and starts its program
// first if nothing listens at its port.
func (d *Door) serveInterpreter(w http.ResponseWriter, r *http.Request, f Found) {
	err := d.interpret(r.Context(), f)
	switch {
	case err == nil:
		d.servePort(w, r, f, interpreterPort)
	case r.Context().Err() != nil:
	case f.gone != nil && f.gone(r.Context()):
		notFound(w, f.Info.ID)
	case turnstone.KindOf(err) == turnstone.KindNotFound:
		envd.Refuse(w, http.StatusBadGateway, "The sandbox is running but port is not open: its template "+
			f.Info.Image+" has no code interpreter; use the template "+interpreterTemplate)
	default:
		d.o.Log.Warn("the code interpreter of a sandbox does not start", "sandbox", f.Info.ID, "error", err)
		envd.Refuse(w, http.StatusBadGateway, "The sandbox is running but port is not open: its code "+
			"interpreter does not start")
	}
}

// interpret makes sure that a sandbox's code interpreter listens. The error is of kind NotFound if the
// sandbox has none.
func (d *Door) interpret(ctx context.Context, f Found) error {
	if d.listens(ctx, f) {
		return nil
	}
	one := d.starting.of(f.Info.ID)
	defer d.starting.leave(f.Info.ID)
	select {
	case one <- struct{}{}:
		defer func() { <-one }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if d.listens(ctx, f) {
		return nil // another request has started it
	}
	process, err := launch(ctx, f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, interpreterStart)
	defer cancel()
	for !d.listens(ctx, f) {
		if ended, err := hasEnded(ctx, f, process); err != nil || ended {
			return turnstone.Errorf("e2b.interpret", turnstone.KindUnavailable, "the code interpreter",
				"has ended: %v", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interpreterPause):
		}
	}
	return nil
}

// listens reports whether something listens at the port of the interpreter.
func (d *Door) listens(ctx context.Context, f Found) bool {
	c, err := f.Dial(ctx, interpreterPort)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// launch starts the interpreter, which outlives the request.
func launch(ctx context.Context, f Found) (string, error) {
	stream, err := f.Open(ctx)
	if err != nil {
		return "", err
	}
	c := wire.NewConn(stream, wire.Options{})
	defer func() { _ = c.Close() }()
	if _, err := c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: interpreterProgram}); err != nil {
		return "", err
	}
	res, err := c.ProcessStart(ctx, &wire.ProcessStartParams{Detach: true,
		Argv: []string{"python3", interpreterProgram}, Cwd: f.Info.Workdir, User: f.Info.User})
	if err != nil {
		return "", err
	}
	return res.ProcessID, nil
}

// hasEnded reports whether a process has ended.
func hasEnded(ctx context.Context, f Found, process string) (bool, error) {
	stream, err := f.Open(ctx)
	if err != nil {
		return false, err
	}
	c := wire.NewConn(stream, wire.Options{})
	defer func() { _ = c.Close() }()
	all, err := c.ProcessList(ctx)
	if err != nil {
		return false, err
	}
	for _, p := range all.Processes {
		if p.ProcessID == process {
			return p.Exit != nil, nil
		}
	}
	return true, nil
}

// starts let one request at a time start the interpreter of a sandbox.
type starts struct {
	mu  sync.Mutex
	all map[turnstone.SandboxID]*start
}

type start struct {
	one   chan struct{} // has room for one: who starts it
	users int
}

// of returns the place of a sandbox. Leave it afterwards.
func (s *starts) of(id turnstone.SandboxID) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[turnstone.SandboxID]*start{}
	}
	if s.all[id] == nil {
		s.all[id] = &start{one: make(chan struct{}, 1)}
	}
	s.all[id].users++
	return s.all[id].one
}

func (s *starts) leave(id turnstone.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[id].users--; s.all[id].users == 0 {
		delete(s.all, id)
	}
}
