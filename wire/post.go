package wire

import (
	"context"
	"encoding/json"

	"turnstone.dev/turnstone"
)

// Post sends a command, and does not wait for its answer, which is dropped. It returns when the
// command is written, also before Close, or when ctx ends. Errors are those of Call without those
// of the other side.
func (c *Conn) Post(ctx context.Context, method string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return turnstone.NewError(turnstone.Op(method), turnstone.KindInternal, "", err)
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.dead(turnstone.Op(method))
	}
	c.lastID++
	id := c.lastID
	c.calls[id] = nil // the answer is dropped
	c.mu.Unlock()
	wrote := make(chan error, 1)
	go func() { wrote <- c.writeMessage(&Message{ID: &id, Method: method, Params: raw}) }()
	select {
	case err := <-wrote:
		if err != nil {
			return c.writeFailed(method, err)
		}
		return nil
	case <-ctx.Done():
		return ctxError(ctx, method)
	}
}
