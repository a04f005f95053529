// Package store keeps objects: byte strings named by their SHA-256, compressed,
// many of them in one pack, which is a blob. Large contents are cut into chunks where
// the content itself says, so that what two versions share is kept once. The
// package knows digests and nothing of what they mean. docs/store.md describes
// the formats, what is durable when, and how objects are deleted.
package store

import (
	"context"
	"errors"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/blob"
	"turnstone.dev/turnstone/tree"
)

// Options change how a store works. The zero value is right outside of tests.
type Options struct {
	// Fault, when set, is called before every write, fsync, rename and removal in the
	// store's directory; its error is that operation's. Tests end the process in it.
	Fault func(op string) error
}

// A Store keeps objects. Its methods are safe for concurrent use, also by several
// processes on one directory.
type Store struct{}

var _ tree.Reader = (*Store)(nil)
var _ tree.Writer = (*Batch)(nil)

// An Alternate has contents that lie elsewhere, as in a template's image, and that
// the store therefore does not keep. What it opens is verified as the store's own.
type Alternate interface {
	OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error)
	HasContent(d turnstone.Digest) bool
}

// A Sizer is an Alternate that knows the sizes of its contents. A large content
// whose size none has needs not be hashed before it is stored.
type Sizer interface {
	HasSize(size int64) bool
}

// A Batch is a number of objects that become durable together: see Flush. Its
// methods are safe for concurrent use.
type Batch struct{}

// A Problem is one thing that Fsck found to be wrong.
type Problem struct {
	Object   turnstone.Digest `json:"object,omitempty"`
	Pack     string           `json:"pack,omitempty"` // the blob's name
	Segment  string           `json:"segment,omitempty"`
	Repaired bool             `json:"repaired,omitempty"` // the index was made again from the packs
	Err      error            `json:"-"`
}

// A Summary is what Fsck read.
type Summary struct {
	Packs, Objects int
	Bytes          int64 // read from packs
	Problems       int
}

// Swept says what Sweep did.
type Swept struct {
	Objects, Kept           int // deleted, kept
	PacksRemoved, PacksMade int
	Freed                   int64 // bytes of packs, less those of the packs made
}

// Usage is how much the store holds.
type Usage struct {
	Packs, Objects int
	Stored         int64 // bytes of the packs
	Bytes          int64 // of the objects, uncompressed
}

// A Mark calls keep for every object that is needed. keep tells whether it is the
// first call for d: the objects below one that was kept need not be looked at again.
type Mark func(ctx context.Context, keep func(d turnstone.Digest) bool) error

var errNotYet = errors.New("not written yet")

// Open opens the store whose packs are in blobs. dir, which is made where it is
// missing, has the local index and the locks.
func Open(ctx context.Context, dir string, blobs blob.Store, opts Options) (*Store, error) {
	return nil, errNotYet
}

// Close releases the store's open files. Batches are closed before.
func (s *Store) Close() error { return errNotYet }

// Get returns the object d. Kind NotFound where there is none, Integrity where it is damaged.
func (s *Store) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) { return nil, errNotYet }

// Has tells whether the object d is there, without reading it.
func (s *Store) Has(ctx context.Context, d turnstone.Digest) (bool, error) { return false, errNotYet }

// OpenContent opens a file's content. Every byte is verified before it is served,
// and the whole against c.Digest and c.Size before io.EOF.
func (s *Store) OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error) {
	return nil, errNotYet
}

// ContentObjects returns the objects that c consists of: none when it is an alternate's.
func (s *Store) ContentObjects(ctx context.Context, c tree.Content) ([]turnstone.Digest, error) {
	return nil, errNotYet
}

// AddAlternate makes the store look into a, too.
func (s *Store) AddAlternate(a Alternate) {}

// Begin begins a batch, and keeps Sweep from deleting until it is closed.
func (s *Store) Begin(ctx context.Context) (*Batch, error) { return nil, errNotYet }

// Fsck reads and checks everything, and reports what is wrong.
func (s *Store) Fsck(ctx context.Context, report func(Problem)) (Summary, error) {
	return Summary{}, errNotYet
}

// Sweep deletes the objects that mark does not keep. mark is called twice: once
// while batches go on, and once while none is open, for what came since.
func (s *Store) Sweep(ctx context.Context, mark Mark) (Swept, error) { return Swept{}, errNotYet }

// Usage tells how much the store holds.
func (s *Store) Usage(ctx context.Context) (Usage, error) { return Usage{}, errNotYet }

// Put keeps b as an object.
func (b *Batch) Put(ctx context.Context, p []byte) (turnstone.Digest, error) { return "", errNotYet }

// PutContent keeps the size bytes of r.
func (b *Batch) PutContent(ctx context.Context, r io.Reader, size int64) (tree.Content, error) {
	return tree.Content{}, errNotYet
}

// Get returns an object of the batch or the store.
func (b *Batch) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) { return nil, errNotYet }

// OpenContent opens a content of the batch or the store.
func (b *Batch) OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error) {
	return nil, errNotYet
}

// Flush makes all that was put durable and known to the store. A batch goes on after it.
func (b *Batch) Flush(ctx context.Context) error { return errNotYet }

// Close ends the batch. What was not flushed is dropped.
func (b *Batch) Close() error { return errNotYet }
