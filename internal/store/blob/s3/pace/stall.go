package pace

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// A watcher ends a request when no byte has moved for a while.
type watcher struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  time.Duration

	mu    sync.Mutex
	timer *time.Timer
}

// watch begins to watch a request that is being sent.
func watch(ctx context.Context, stall time.Duration) *watcher {
	w := &watcher{stall: stall}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(stall, func() { w.cancel(ErrStalled) })
	return w
}

// moved puts off the end.
func (w *watcher) moved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Reset(w.stall)
}

// pause stops the watch: nobody waits for the other side.
func (w *watcher) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

// end stops the watch for good, and returns err with its cause.
func (w *watcher) end(err error) error {
	w.pause()
	if errors.Is(context.Cause(w.ctx), ErrStalled) {
		err = ErrStalled
	}
	w.cancel(context.Canceled)
	return err
}

// moving is the body of a request.
type moving struct {
	io.ReadCloser
	w *watcher
}

// Read implements io.Reader.
func (m *moving) Read(p []byte) (int, error) {
	m.w.moved()
	return m.ReadCloser.Read(p)
}

// waited is the body of an answer. Its reader may be slow; the server may not, while somebody reads.
type waited struct {
	io.ReadCloser
	w *watcher
}

// Read implements io.Reader.
func (b *waited) Read(p []byte) (int, error) {
	b.w.moved()
	n, err := b.ReadCloser.Read(p)
	b.w.pause()
	if err != nil && err != io.EOF && errors.Is(context.Cause(b.w.ctx), ErrStalled) {
		err = ErrStalled
	}
	return n, err
}

// Close implements io.Closer.
func (b *waited) Close() error {
	err := b.ReadCloser.Close()
	_ = b.w.end(nil)
	return err
}
