package sandboxes

import (
	"context"
	"os"

	"turnstone.dev/turnstone"
)

// A Control works on a sandbox's machine as a whole, through its holder. Its
// methods are safe for concurrent use; the holder carries out one at a time.
type Control struct {
	s  *Store
	id turnstone.SandboxID
}

// Control returns the control of a sandbox that lives.
func (s *Store) Control(ctx context.Context, id turnstone.SandboxID) (*Control, error) {
	return &Control{s: s, id: id}, nil
}

// Close ends the connection to the holder; the sandbox stays as it is.
func (c *Control) Close() error { return nil }

// Pause makes the machine stand still, with its processes and its memory. The
// connections to the sandbox end, and no new one is taken until Resume.
func (c *Control) Pause(ctx context.Context) error { return c.do(ctx, "pause") }

// Resume lets a paused machine go on, with fresh entropy and the host's clock.
func (c *Control) Resume(ctx context.Context) error { return c.do(ctx, "resume") }

// Snapshot writes the machine into the folder dir, which it makes, as
// substrate.Snapshotter says. One that runs goes on, its connections end; one that
// is paused stays so.
func (c *Control) Snapshot(ctx context.Context, dir string) error { return c.do(ctx, "snapshot") }

// Disk returns the machine's scratch disk, which the caller closes. It is still only
// while the machine is.
func (c *Control) Disk(ctx context.Context) (*os.File, error) { return nil, c.do(ctx, "disk") }

func (c *Control) do(ctx context.Context, op string) error {
	return &turnstone.Error{Op: "sandbox.control", Kind: turnstone.Unavailable, Subject: "sandbox " + string(c.id), Hint: op}
}
