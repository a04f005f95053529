package substrate

import (
	"context"
	"errors"
	"io"
	"os"

	"turnstone.dev/turnstone"
)

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

// A Resumer is a Substrate that starts sandboxes from what a Snapshotter has written. Its
// sandboxes are Snapshotters and Pausers. A clone of a running sandbox takes no more than
// this; only what is kept takes a Keeper.
type Resumer interface {
	// RestoreFrom starts a clone of the sandbox in dir, which was started from m. Its
	// memory is copy-on-write, and dir may be removed once it has started. The agent
	// waits for a new link and Sandbox.renew. An error of kind Integrity says that the
	// folder is damaged, one of kind Unavailable that it was written by a machine that
	// this one cannot take the place of; then no other try helps.
	RestoreFrom(ctx context.Context, m Machine, dir string) (Sandbox, error)
}

// Abilities says what of its optional interfaces a substrate keeps on this host. A nil error means
// that it keeps them; an error has a hint that names a remedy.
type Abilities struct {
	Live error // sandboxes are paused and cloned as they run: Pauser, Snapshotter, Resumer
	Keep error // machines are packed for long, and restored from that: Keeper
}

// An Able is a Substrate whose abilities depend on the host: on the version of its program, or on
// how that is confined.
type Able interface {
	// Abilities starts nothing.
	Abilities() Abilities
}

// AbilitiesOf returns what s can do by its type and on this host. What its type rules out is
// errors.ErrUnsupported. A Keeper that cannot do what a Resumer does keeps nothing.
func AbilitiesOf(s Substrate) (a Abilities) {
	if able, ok := s.(Able); ok {
		a = able.Abilities()
	}
	if _, ok := s.(Resumer); !ok {
		a.Live = errors.ErrUnsupported
	}
	if _, ok := s.(Keeper); !ok {
		a.Keep = errors.ErrUnsupported
	} else if a.Live != nil {
		a.Keep = a.Live
	}
	return a
}

// A Keeper is a Resumer that turns what a Snapshotter has written into something to
// keep for long, and back.
type Keeper interface {
	Resumer
	// Pack writes into the folder out, which it makes, what is in dir and not in what
	// m's machines start from anyway: the memory and the disk as differences against
	// the snapshot of the template.
	Pack(ctx context.Context, m Machine, dir, out string) (Packed, error)
	// Unpack makes the folder dir of the files that Pack and PackBase have written, for
	// RestoreFrom. m.Layers are the images that Packed.Layers has named, in that order.
	// packed may come from anywhere, and names what it opens by the names that Pack and
	// PackBase return. An error of kind Integrity says that something of packed is damaged;
	// one of kind Unavailable that something that has to be the same is another here, and
	// that no other try helps.
	Unpack(ctx context.Context, m Machine, packed PackedFiles, dir string) error
}

// PackedFiles are the files that Pack and PackBase have written, wherever they are kept now.
type PackedFiles interface {
	// Open returns the file called name, which the caller closes. The error of one that is not
	// there is fs.ErrNotExist.
	Open(name string) (io.ReadCloser, error)
}

// PackedDir is a folder with PackedFiles. A name does not lead out of it.
type PackedDir string

// Open implements PackedFiles.
func (d PackedDir) Open(name string) (io.ReadCloser, error) { return os.DirFS(string(d)).Open(name) }

// A BasePacker is a Keeper whose packed machines are differences against a base: the
// snapshot of the template that they were started from, which many have in common.
type BasePacker interface {
	Keeper
	// PackBase writes the base that Packed.Base of a machine of m names into the folder out,
	// which it makes, and returns the files' names: Unpack takes them where that snapshot is
	// gone, or another. One that is not there is an error of kind Unavailable.
	PackBase(ctx context.Context, m Machine, base turnstone.Digest, out string) (files []string, err error)
}

// Packed says what Pack has written.
type Packed struct {
	Files  []string // names in the folder; each is worth its size, none has holes
	Layers []string // names of the images that the machine has as layers, the lowest first
	// Base names what the files differ from; see BasePacker. Empty: they stand alone.
	Base turnstone.Digest
}
