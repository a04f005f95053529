// Package upperdir reads what an agent exports of an overlay's upper directory
// (State.export of package wire): a tar stream that somebody hostile may have
// written. It is for sandboxes whose disk the host cannot read; package ext4 is for
// the others, and both give the same tree.
//
// The stream is archive/tar's, with extended headers (PAX), and stricter: the first
// entry is the directory itself, "./"; each directory comes before what is in it, and
// all that is in it before anything else; a hard link comes after the file that it
// names. docs/wire.md has the records that are the project's own.
package upperdir

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options bounds what is read. Zero values are the defaults.
type Options struct {
	// Bytes is how much data there may be in all files together, without holes; the
	// default is 64 GiB. Give the size of the sandbox's disk.
	Bytes int64
	// Holes is how many bytes of files may be holes, in all files together: they
	// take no room in the stream and all the time to read. The default is 64 GiB.
	Holes int64
	// Entries is how many files there may be: each takes memory while the stream is
	// read. The default, and the most of it, is what an ext4 disk of Bytes has room for,
	// one for each 8 KiB, at least 256 Ki, and at most 5 million.
	Entries int
	// FileSize is how large one file may be, holes included. The default is 1 TiB.
	FileSize int64
	// Room is asked before more of the contents is written to the folder; an error ends
	// Read. It may be nil.
	Room func() error
	// Meta bounds the bytes of names, link targets and extended attributes in all;
	// the default is 256 MiB.
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

// A Dir is an upper directory that was read. Close it when its tree is not used
// any more.
type Dir struct {
	root  *node
	spool *os.File
}

// Read reads the stream r to its end. File contents go into a file without a name in
// the folder dir. Errors are of kind Integrity when r is not what an agent writes or
// is cut off, Exhausted when it is more than opts allows, Unavailable when dir cannot
// be written; others are those of r. When ctx ends, Read does with the next bytes of r.
func Read(ctx context.Context, r io.Reader, dir string, opts Options) (*Dir, error) {
	opts.defaults()
	spool, err := openSpool(dir)
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

// openSpool makes a file without a name (O_TMPFILE of open(2)).
func openSpool(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "what a sandbox left"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".upper-*") // a file system without nameless files
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

// Root returns the upper directory. It is what layer.Apply takes. Nodes are safe for
// concurrent use.
func (u *Dir) Root() tree.Node { return u.root }

// Close frees the contents.
func (u *Dir) Close() error { return u.spool.Close() }

func integrity(subject, format string, args ...any) error {
	return turnstone.Errorf("upper.read", turnstone.KindIntegrity, clip(subject), format, args...).
		WithHint("what the sandbox says it changed makes no sense, so it cannot be kept; run the turn again")
}

func exhausted(subject, hint, format string, args ...any) error {
	return turnstone.Errorf("upper.read", turnstone.KindExhausted, clip(subject), format, args...).
		WithHint(hint)
}

func unavailable(dir string, err error) error {
	return turnstone.NewError("upper.read", turnstone.KindUnavailable, dir, err).
		WithHint("what the sandbox changed needs room here for a while; free some, or set TURN_HOME to a larger disk")
}

// clip bounds what a guest says in a message.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
