// Package local keeps blobs as files below a folder.
package local

import (
	"context"
	"errors"
	"io"
	"iter"

	"turnstone.dev/turnstone/blob"
)

// Options change how a store works. The zero value is right outside of tests.
type Options struct {
	// Fault, when set, is called before every write, fsync, rename and removal; its
	// error is that operation's.
	Fault func(op string) error
}

// A Store is a folder.
type Store struct{}

var _ blob.Store = (*Store)(nil)

var errNotYet = errors.New("not written yet")

// Open opens the folder dir, which is made where it is missing.
func Open(dir string, opts Options) (*Store, error) { return nil, errNotYet }

// Put is blob.Store's.
func (s *Store) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	return errNotYet
}

// Get is blob.Store's.
func (s *Store) Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	return nil, errNotYet
}

// List is blob.Store's.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] { return nil }

// Remove is blob.Store's.
func (s *Store) Remove(ctx context.Context, name string) error { return errNotYet }

// Close releases what is open.
func (s *Store) Close() error { return errNotYet }
