package wire

import (
	"context"
	"errors"
	"io"
)

// Export has the agent pack the upper directory (State.export, which comes after
// State.freeze), and calls read with the stream. What comes is hostile: read it with
// package upperdir. An error of read is returned before the agent's.
func (c *Client) Export(ctx context.Context, read func(io.Reader) error) error {
	return c.export(ctx, false, read)
}

// ExportHeld is Export of a sandbox that goes on afterwards: its processes stand
// still until Sandbox.suspend, which is to follow, and renew.
func (c *Client) ExportHeld(ctx context.Context, read func(io.Reader) error) error {
	return c.export(ctx, true, read)
}

func (c *Client) export(ctx context.Context, hold bool, read func(io.Reader) error) error {
	id := c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
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
