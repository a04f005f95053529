// Package upperdir reads an agent's export of an overlay's upper directory (State.export of package
// wire): a possibly hostile tar stream. It is for sandboxes whose disk the host cannot read;
// package ext4 is for the others, and both result in the same tree.
//
// The stream is archive/tar's with extended headers (PAX), with additional rules: the first entry
// is the directory itself, "./"; each directory precedes its entries, which are contiguous; a hard
// link follows its file. docs/wire.md describes the project's own records.
package upperdir

import (
	"context"
	"io"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options bound the input. Zero values are the defaults.
type Options struct {
	// Bytes bounds the total data in all files, without holes; the default is 64 GiB. Set it to the
	// size of the sandbox's disk.
	Bytes int64
	// Holes bounds the total bytes of holes in all files: holes use no space in the stream but take
	// time to read. The default is 64 GiB.
	Holes int64
	// Entries bounds the number of files, which use memory while the stream is read. The default,
	// and the maximum, is the capacity of an ext4 disk of Bytes, one per 8 KiB, at least 256 Ki,
	// and at most 5 million.
	Entries int
	// FileSize bounds the size of a file, including holes. The default is 1 TiB.
	FileSize int64
	// Room is called before contents are written to the folder; an error ends Read. It may be nil.
	Room func() error
	// Meta bounds the total bytes of names, link targets and extended attributes; the default is
	// 256 MiB.
	Meta int64
}

const (
	defaultBytes  = 64 << 30
	defaultHoles  = 64 << 30
	leastEntries  = 256 << 10
	bytesPerEntry = 8 << 10
	mostEntries   = 5_000_000
	defaultMeta   = 256 << 20
	defaultFile   = 1 << 40
)

func (o *Options) defaults() {
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if o.Holes == 0 {
		o.Holes = defaultHoles
	}
	if room := int(max(leastEntries, o.Bytes/bytesPerEntry)); o.Entries == 0 {
		o.Entries = min(room, mostEntries)
	} else {
		o.Entries = min(room, o.Entries)
	}
	if o.FileSize == 0 {
		o.FileSize = defaultFile
	}
	if o.Meta == 0 {
		o.Meta = defaultMeta
	}
}

// A Dir is an upper directory in memory. Close it when its tree is no longer used.
type Dir struct {
	root  *node
	spool *os.File
}

// Read reads the stream r to its end. File contents go to an unnamed file in the folder dir. Errors
// are of kind Integrity if an agent does not write such a stream or it is truncated, Exhausted if
// it exceeds opts, and Unavailable if dir is not writable; other errors are those of r. When ctx
// ends, Read ends with the next bytes of r.
func Read(ctx context.Context, r io.Reader, dir string, opts Options) (*Dir, error) {
	opts.defaults()
	spool, err := statedir.Unnamed(dir)
	if err != nil {
		return nil, unavailable(dir, err)
	}
	root, err := read(ctx, r, spool, opts)
	if err != nil {
		_ = spool.Close()
		return nil, err
	}
	return &Dir{root: root, spool: spool}, nil
}

// Root returns the upper directory for layer.Apply. Nodes are safe for concurrent use.
func (u *Dir) Root() tree.Node { return u.root }

// Close frees the contents.
func (u *Dir) Close() error { return u.spool.Close() }

func integrity(subject, format string, args ...any) error {
	return turnstone.Errorf("upper.read", turnstone.KindIntegrity,
		brief.Subject(subject), format, args...).
		WithHint(
			"run the turn again: the sandbox's report of its changes is invalid and cannot be kept")
}

func exhausted(subject, hint, format string, args ...any) error {
	return turnstone.Errorf("upper.read", turnstone.KindExhausted,
		brief.Subject(subject), format, args...).
		WithHint(hint)
}

func unavailable(dir string, err error) error {
	return turnstone.NewError("upper.read", turnstone.KindUnavailable, dir, err).
		WithHint("free some disk space, which the sandbox's changes need temporarily, or set " +
			"TURN_HOME to a larger disk")
}
