package substrate

import (
	"context"
	"errors"
	"io"
	"os"

	"turnstone.dev/turnstone"
)

// A Snapshotter is a Sandbox whose running machine, including its memory, can be saved. The agent
// must not be in the middle of a conversation: see Sandbox.suspend of the wire.
type Snapshotter interface {
	// Snapshot writes the machine's current state into the new folder dir: memory, devices, the
	// scratch disk, and a manifest of them. The machine is paused meanwhile; afterwards it resumes,
	// unless it was paused before. The folder is complete or absent. Only one snapshot is taken at
	// a time.
	Snapshot(ctx context.Context, dir string) error
}

// A Resumer is a Substrate that starts sandboxes from a Snapshotter's files. Its sandboxes are
// Snapshotters and Pausers. A clone of a running sandbox needs only a Resumer; stored machines need
// a Keeper.
type Resumer interface {
	// RestoreFrom starts a clone of the sandbox in dir, which was started from m. Its memory is
	// copy-on-write, and dir may be removed after the start. The agent waits for a new link and
	// Sandbox.renew. An error of kind KindIntegrity means that the folder is damaged; an error of
	// kind KindUnavailable means that this machine is not compatible with the machine that wrote
	// the folder, and a retry does not help.
	RestoreFrom(ctx context.Context, m Machine, dir string) (Sandbox, error)
}

// Abilities describes which optional interfaces a substrate supports on this host. A nil error
// means that they are supported; any other error has a hint that names a remedy.
type Abilities struct {
	Live error // pausing and cloning of running sandboxes: Pauser, Snapshotter, Resumer
	Keep error // packing machines for long-term storage, and restoring them: Keeper
}

// An Able is a Substrate whose abilities depend on the host, such as on the version or the
// confinement of its program.
type Able interface {
	// Abilities starts nothing.
	Abilities() Abilities
}

// AbilitiesOf returns the abilities of s, by its type and on this host. An ability that its type
// excludes is errors.ErrUnsupported. A Keeper that cannot do what a Resumer does cannot keep
// machines either.
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

// A Keeper is a Resumer that converts a Snapshotter's files to a form for long-term storage, and
// back.
type Keeper interface {
	Resumer
	// Pack writes the contents of dir into the new folder out, without the parts that m's machines
	// start from anyway: the memory and the disk become differences from the template's snapshot.
	Pack(ctx context.Context, m Machine, dir, out string) (Packed, error)
	// Unpack creates the folder dir for RestoreFrom from the files of Pack and PackBase. m.Layers
	// are the images that Packed.Layers names, in that order. packed is untrusted; its files have
	// the names that Pack and PackBase return. An error of kind KindIntegrity means that packed is
	// damaged; an error of kind KindUnavailable means that a required part differs on this machine,
	// and a retry does not help.
	Unpack(ctx context.Context, m Machine, packed PackedFiles, dir string) error
}

// PackedFiles are the files that Pack and PackBase wrote, wherever they are stored now.
type PackedFiles interface {
	// Open returns the file called name, which the caller closes. A missing file is the error
	// fs.ErrNotExist.
	Open(name string) (io.ReadCloser, error)
}

// PackedDir is a folder with PackedFiles. No name leads out of the folder.
type PackedDir string

// Open implements PackedFiles.
func (d PackedDir) Open(name string) (io.ReadCloser, error) {
	return os.DirFS(string(d)).Open(name)
}

// A BasePacker is a Keeper whose packed machines are differences from a base: the snapshot of the
// template that they were started from, which many machines share.
type BasePacker interface {
	Keeper
	// PackBase writes the base that Packed.Base of a machine of m names into the new folder out,
	// and returns the files' names: Unpack uses them if that snapshot is missing or different. A
	// missing base is an error of kind KindUnavailable.
	PackBase(ctx context.Context, m Machine, base turnstone.Digest, out string) (files []string,
		err error)
}

// Packed describes the files of Pack.
type Packed struct {
	Files  []string // names in the folder; each file uses its full size, without holes
	Layers []string // names of the images that the machine has as layers, lowest first
	// Base names the base of the differences; see BasePacker. Empty: the files need no base.
	Base turnstone.Digest
}
