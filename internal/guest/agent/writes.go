package agent

import (
	"context"
	"io"
	"sync"

	"turnstone.dev/turnstone/wire"
)

// writes are the commands that write to the sandbox's file systems. While these are
// frozen none may: where the kernel cannot freeze them, this is what does. A command
// that waits for its client meanwhile holds nobody up.
type writes struct {
	mu      sync.Mutex
	running int
	stopped chan struct{} // nil: writes may go on; closed when they may again
	idle    chan struct{} // closed when none runs; nil: nobody waits for that
}

// enter waits until a write may begin. leave must follow.
func (w *writes) enter(ctx context.Context) error {
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

func (w *writes) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running--; w.running == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// stop lets no write begin, and returns when none is under way. resume must follow,
// also when it fails.
func (w *writes) stop(ctx context.Context) error {
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

func (w *writes) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped != nil {
		close(w.stopped)
		w.stopped = nil
	}
}

// from returns r for a command that has entered and writes what r yields: while it
// waits for r it counts as one that does not write.
func (w *writes) from(r io.Reader) io.Reader { return &writesFrom{w, r} }

type writesFrom struct {
	w *writes
	r io.Reader
}

// Read implements io.Reader. After it the command writes, or tidies up: it waits
// for that even when its client has gone.
func (f *writesFrom) Read(p []byte) (int, error) {
	f.w.leave()
	n, err := f.r.Read(p)
	_ = f.w.enter(context.Background()) // which does not end
	return n, err
}

// A fileServer answers the domain FileSystem: files, with those of its commands that
// write kept from what is frozen.
type fileServer struct{ *files }

func (f fileServer) Write(ctx context.Context, c *wire.Conn, p *wire.FileSystemWriteParams) (*wire.FileSystemWriteResult, error) {
	if err := f.writes.enter(ctx); err != nil {
		return nil, fsError(wire.MethodFileSystemWrite, p.Path, err)
	}
	defer f.writes.leave()
	return f.files.Write(ctx, c, p)
}

func (f fileServer) Mkdir(ctx context.Context, c *wire.Conn, p *wire.FileSystemMkdirParams) error {
	if err := f.writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemMkdir, p.Path, err)
	}
	defer f.writes.leave()
	return f.files.Mkdir(ctx, c, p)
}

func (f fileServer) Move(ctx context.Context, c *wire.Conn, p *wire.FileSystemMoveParams) error {
	if err := f.writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemMove, p.From, err)
	}
	defer f.writes.leave()
	return f.files.Move(ctx, c, p)
}

func (f fileServer) Remove(ctx context.Context, c *wire.Conn, p *wire.FileSystemRemoveParams) error {
	if err := f.writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemRemove, p.Path, err)
	}
	defer f.writes.leave()
	return f.files.Remove(ctx, c, p)
}

func (f fileServer) Unpack(ctx context.Context, c *wire.Conn, p *wire.FileSystemUnpackParams) error {
	if err := f.writes.enter(ctx); err != nil {
		return fsError(wire.MethodFileSystemUnpack, p.Dest, err)
	}
	defer f.writes.leave()
	return f.files.Unpack(ctx, c, p)
}
