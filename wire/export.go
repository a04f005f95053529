package wire

import (
	"context"
	"errors"
	"io"
)

// Export makes the agent pack the upper directory (State.export, after State.freeze) and calls read
// with the stream. The stream is untrusted, and its format is internal to this module. An error of
// read takes precedence over the agent's error.
func (c *Client) Export(ctx context.Context, read func(io.Reader) error) error {
	return c.export(ctx, false, read)
}

// ExportHeld is Export for a sandbox that continues afterwards: its processes stay frozen until
// Sandbox.suspend, which must follow, and renew.
func (c *Client) ExportHeld(ctx context.Context, read func(io.Reader) error) error {
	return c.export(ctx, true, read)
}

func (c *Client) export(ctx context.Context, hold bool, read func(io.Reader) error) error {
	id := c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer r.Close()
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()
	answer := make(chan error, 1)
	go func() {
		_, err := c.StateExport(ctx, &StateExportParams{Stream: id, Hold: hold})
		if err != nil {
			_ = r.Close()
		}
		answer <- err
	}()
	err = read(r)
	_ = r.Close()
	failed := <-answer
	if failed != nil && (errors.Is(err, ErrReset) || hungUp(err)) { // read saw only the consequence
		return failed
	}
	if err != nil {
		return err
	}
	return failed
}
