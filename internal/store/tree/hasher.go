package tree

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"sync"

	"turnstone.dev/turnstone"
)

// A Hasher is a Writer that keeps nothing: with it Build computes an FS hash. Get returns nothing
// that was put.
type Hasher struct {
	pool sync.Pool
}

// hashing is the state of a PutContent.
type hashing struct {
	h   hash.Hash
	buf []byte
}

// NewHasher returns a Hasher. Its methods are safe for concurrent use.
func NewHasher() *Hasher {
	return &Hasher{
		pool: sync.Pool{New: func() any { return &hashing{sha256.New(), make([]byte, 256<<10)} }}}
}

// Get always returns an error of kind NotFound.
func (*Hasher) Get(_ context.Context, d turnstone.Digest) ([]byte, error) {
	return nil, turnstone.NewError("tree.hasher", turnstone.KindNotFound, string(d), nil)
}

// Put returns b's digest.
func (*Hasher) Put(ctx context.Context, b []byte) (turnstone.Digest, error) {
	return turnstone.DigestBytes(b), ctx.Err()
}

// PutContent returns the digest of the data of r, and its size.
func (s *Hasher) PutContent(ctx context.Context, r io.Reader, _ int64) (turnstone.Content, error) {
	h, _ := s.pool.Get().(*hashing)
	defer s.pool.Put(h)
	h.h.Reset()
	var size int64
	for {
		if err := ctx.Err(); err != nil {
			return turnstone.Content{}, err
		}
		n, err := r.Read(h.buf)
		_, _ = h.h.Write(h.buf[:n]) // documented never to fail
		size += int64(n)
		if err == io.EOF { //nolint:errorlint // readers return it as it is
			return turnstone.Content{Digest: digestOf(h.h), Size: size}, nil
		}
		if err != nil {
			return turnstone.Content{}, err
		}
	}
}
