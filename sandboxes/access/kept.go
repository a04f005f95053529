package access

import (
	"context"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// maxShared bounds the tasks that share a connection: an agent takes 32 streams of one, and a command
// has up to three.
const maxShared = 8

// A Kept is a connection to one sandbox that tasks share, for a caller of many commands. A connection
// that was lost is replaced at the next task. The zero value is ready; its methods are safe for
// concurrent use.
type Kept struct {
	mu     sync.Mutex
	client *wire.Client
	used   int // tasks that share client
	closed bool
}

// take returns a connection for a task, which calls done at its end.
func (k *Kept) take(dial func() (*wire.Client, error)) (c *wire.Client, done func(), err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.used >= maxShared {
		c, err := dial()
		return c, closing(c), err
	}
	if k.client == nil || k.client.Context().Err() != nil {
		c, err := dial()
		if err != nil {
			return nil, nil, err
		}
		k.client, k.used = c, 0
	}
	k.used++
	c = k.client
	return c, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.client == c {
			k.used--
		}
	}, nil
}

func closing(c *wire.Client) func() {
	if c == nil {
		return nil
	}
	return func() { _ = c.Close() }
}

// Drop closes the connection. The next task makes another one.
func (k *Kept) Drop() {
	k.mu.Lock()
	c := k.client
	k.client = nil
	k.mu.Unlock()
	if c != nil {
		_ = c.Close()
		c.Wait()
	}
}

// Close closes the connection, and keeps no other one.
func (k *Kept) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.Drop()
}

// Use calls f with a connection for a task: that which is kept, or one of its own. If the kept one turns
// out to be lost, f runs again on a new one: it must be safe to repeat.
func (a *Access) Use(ctx context.Context, id turnstone.SandboxID, f func(*wire.Client) error) error {
	for again := a.Kept != nil; ; again = false {
		c, done, err := a.use(ctx, id)
		if err != nil {
			return err
		}
		err = f(c)
		done()
		if !again || turnstone.KindOf(err) != turnstone.KindDead || ctx.Err() != nil {
			return orCanceled(ctx, a.EndReason(ctx, id, err))
		}
	}
}

// use returns a connection for a task, which calls done at its end.
func (a *Access) use(ctx context.Context, id turnstone.SandboxID) (c *wire.Client, done func(), err error) {
	dial := func() (*wire.Client, error) { return a.Client(ctx, id) }
	if a.Kept != nil {
		return a.Kept.take(dial)
	}
	c, err = dial()
	return c, closing(c), err
}
