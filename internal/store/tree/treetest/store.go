// Package treetest supports tests of trees: a store in memory, trees as lists of files, and random
// trees.
package treetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"turnstone.dev/turnstone"
)

// chunked is the size in bytes above which a content gets a list of chunks, so that tests include
// such contents.
const chunked = 64 << 10

// A Store keeps objects and contents in memory, and verifies its results. It is a tree.Writer and a
// tree.Reader, safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	objects  map[turnstone.Digest][]byte
	contents map[turnstone.Digest][]byte
	gets     int
	puts     int
	opens    int
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{objects: map[turnstone.Digest][]byte{}, contents: map[turnstone.Digest][]byte{}}
}

// Get returns an object.
func (s *Store) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, turnstone.NewError("treetest.get", turnstone.KindCanceled, string(d), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	return get(s.objects, d)
}

func get(m map[turnstone.Digest][]byte, d turnstone.Digest) ([]byte, error) {
	b, ok := m[d]
	if !ok {
		return nil, turnstone.Errorf("treetest.get", turnstone.KindNotFound, string(d),
			"is not in the store")
	}
	if turnstone.DigestBytes(b) != d {
		return nil, turnstone.Errorf("treetest.get", turnstone.KindIntegrity, string(d),
			"is damaged")
	}
	return b, nil
}

// Put stores an object.
func (s *Store) Put(ctx context.Context, b []byte) (turnstone.Digest, error) {
	if err := ctx.Err(); err != nil {
		return "", turnstone.NewError("treetest.put", turnstone.KindCanceled, "", err)
	}
	d := turnstone.DigestBytes(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if _, ok := s.objects[d]; !ok {
		s.objects[d] = bytes.Clone(b)
	}
	return d, nil
}

// PutContent stores a file's bytes. A larger file gets an object that lists its chunks.
func (s *Store) PutContent(ctx context.Context, r io.Reader, size int64) (turnstone.Content,
	error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return turnstone.Content{}, err
	}
	if int64(len(b)) != size {
		return turnstone.Content{},
			fmt.Errorf("treetest: a content of %d bytes was announced as one of %d", len(b), size)
	}
	c := turnstone.Content{Digest: turnstone.DigestBytes(b), Size: size}
	if size > chunked {
		if c.Chunks, err = s.Put(ctx, []byte("chunks of "+string(c.Digest))); err != nil {
			return turnstone.Content{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contents[c.Digest] = b
	return c, nil
}

// OpenContent opens a file's bytes.
func (s *Store) OpenContent(_ context.Context, c turnstone.Content) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens++
	b, err := get(s.contents, c.Digest)
	if err == nil && int64(len(b)) != c.Size {
		err = fmt.Errorf("treetest: %s has %d bytes, not %d", c.Digest, len(b), c.Size)
	}
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// Objects returns the names of all objects, sorted.
func (s *Store) Objects() []turnstone.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Contents returns the names of all contents, sorted.
func (s *Store) Contents() []turnstone.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.contents))
}

// Calls returns how often an object was read and put.
func (s *Store) Calls() (gets, puts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets, s.puts
}

// Opens returns how often a content was opened.
func (s *Store) Opens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opens
}

// Remove removes an object or a content.
func (s *Store) Remove(d turnstone.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, d)
	delete(s.contents, d)
}

// Damage changes a byte of an object or a content, so that getting it fails.
func (s *Store) Damage(d turnstone.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range []map[turnstone.Digest][]byte{s.objects, s.contents} {
		if b := bytes.Clone(m[d]); len(b) > 0 {
			b[len(b)/2] ^= 1
			m[d] = b
		}
	}
}
