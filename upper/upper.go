// Package upper reads what an agent exports of an overlay's upper directory
// (State.export of package wire): a tar stream that somebody hostile may have
// written. It is for sandboxes whose disk the host cannot read; package ext4 is for
// the others, and both give the same tree.
package upper

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/tree"
)

// Options bounds what is read. Zero values are the defaults.
type Options struct {
	// Bytes is how much data there may be in all files together, without holes; the
	// default is 1 TiB. Give the size of the sandbox's disk.
	Bytes int64
	// Holes is how many bytes of files may be holes, in all files together: they
	// take no room in the stream and all the time to read. The default is 64 GiB.
	Holes int64
	// Entries is how many entries there may be; the default is 8 Mi.
	Entries int
	// Meta bounds the bytes of names, link targets and extended attributes in all;
	// the default is 1 GiB.
	Meta int64
}

// An Upper is an upper directory that was read. Close it when its tree is not used
// any more.
type Upper struct{}

// Read reads the stream r to its end. File contents go into a file without a name in
// the folder dir. Errors are of kind Integrity when r is not what an agent writes or
// is cut off, Exhausted when it is more than opts allows, Unavailable when dir cannot
// be written; others are those of r. When ctx ends, Read does with the next bytes of r.
func Read(ctx context.Context, r io.Reader, dir string, opts Options) (*Upper, error) {
	return nil, &turnstone.Error{Op: "upper.read", Kind: turnstone.Internal}
}

// Root returns the upper directory. It is what layer.Apply takes. Nodes are safe for
// concurrent use.
func (u *Upper) Root() tree.Node { return nil }

// Close frees the contents.
func (u *Upper) Close() error { return nil }
