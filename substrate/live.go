package substrate

import "context"

// A Snapshotter is a Sandbox that can be written down as it runs, memory and all.
// The agent must not be in the middle of a conversation then: see Sandbox.suspend
// of the wire.
type Snapshotter interface {
	// Snapshot writes the machine as it is now into the folder dir, which it makes:
	// memory, devices, the scratch disk, and a manifest of them. The machine stands
	// still meanwhile; then it goes on, unless it was paused before. The folder is
	// there whole or not at all. One snapshot is taken at a time.
	Snapshot(ctx context.Context, dir string) error
}

// A Resumer is a Substrate that starts sandboxes from what a Snapshotter has written.
type Resumer interface {
	// RestoreFrom starts a clone of the sandbox in dir, which was started from m. Its
	// memory is copy-on-write, and dir may be removed once it has started. The agent
	// waits for a new link and Sandbox.renew. An error of kind Integrity says that the
	// folder is damaged, one of kind Unavailable that it was written by a machine that
	// this one cannot take the place of; then no other try helps.
	RestoreFrom(ctx context.Context, m Machine, dir string) (Sandbox, error)
}
