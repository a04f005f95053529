package files

import (
	"context"
	"io"
	"sync"

	"turnstone.dev/turnstone/wire"
)

// Writes controls the commands that write to the sandbox's file systems. None may write while the
// file systems are frozen: on a kernel that cannot freeze them, Writes blocks these commands. A
// command that waits for its client blocks nobody.
type Writes struct {
	mu      sync.Mutex
	running int
	stopped chan struct{} // nil: writes may run; closed when they may run again
	idle    chan struct{} // closed when none runs; nil: nobody waits for it
}

// enter waits until a write may begin. leave must follow.
func (w *Writes) enter(ctx context.Context) error {
	for {
		w.mu.Lock()
		stopped := w.stopped
		if stopped == nil {
			w.running++
			w.mu.Unlock()
			return nil
		}
		w.mu.Unlock()
		select {
		case <-stopped:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *Writes) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running--; w.running == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// Stop blocks new writes, and returns when none is in progress. Resume must follow, also after an
// error.
func (w *Writes) Stop(ctx context.Context) error {
	w.mu.Lock()
	if w.stopped == nil {
		w.stopped = make(chan struct{})
	}
	if w.running == 0 {
		w.mu.Unlock()
		return nil
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Resume allows writes again.
func (w *Writes) Resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped != nil {
		close(w.stopped)
		w.stopped = nil
	}
}

// from wraps r for a command that has entered and writes r's data: while the command waits for r,
// it does not count as a write.
func (w *Writes) from(r io.Reader) io.Reader { return &writesFrom{w, r} }

type writesFrom struct {
	w *Writes
	r io.Reader
}

// Read implements io.Reader. Afterwards the command writes, or cleans up: Read waits for permission
// even if the client has disconnected.
func (f *writesFrom) Read(p []byte) (int, error) {
	f.w.leave()
	n, err := f.r.Read(p)
	_ = f.w.enter(context.Background()) // which never ends
	return n, err
}

// A Server answers the domain FileSystem: it is Files whose writing commands wait while the file
// systems are frozen.
type Server struct{ *Files }

// NewServer returns the server of the domain FileSystem.
func NewServer(f *Files) Server { return Server{f} }

func (f Server) Write(ctx context.Context, c *wire.Conn,
	p *wire.FileSystemWriteParams) (*wire.FileSystemWriteResult, error) {
	if err := f.Writes.enter(ctx); err != nil {
		return nil, fsError(wire.MethodFileSystemWrite, p.Path, err)
	}
	defer f.Writes.leave()
	return f.Files.Write(ctx, c, p)
}

func (f Server) Mkdir(ctx context.Context, c *wire.Conn, p *wire.FileSystemMkdirParams) error {
	if err := f.Writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemMkdir, p.Path, err)
	}
	defer f.Writes.leave()
	return f.Files.Mkdir(ctx, c, p)
}

func (f Server) Move(ctx context.Context, c *wire.Conn, p *wire.FileSystemMoveParams) error {
	if err := f.Writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemMove, p.From, err)
	}
	defer f.Writes.leave()
	return f.Files.Move(ctx, c, p)
}

func (f Server) Remove(ctx context.Context, c *wire.Conn, p *wire.FileSystemRemoveParams) error {
	if err := f.Writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemRemove, p.Path, err)
	}
	defer f.Writes.leave()
	return f.Files.Remove(ctx, c, p)
}

func (f Server) Unpack(ctx context.Context, c *wire.Conn, p *wire.FileSystemUnpackParams) error {
	if err := f.Writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemUnpack, p.Dest, err)
	}
	defer f.Writes.leave()
	return f.Files.Unpack(ctx, c, p)
}
