package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/announced"
)

// An Alternate has contents in another place, such as a template's image, that the store therefore
// does not keep. The store verifies them like its own. Its methods are safe for concurrent use.
type Alternate interface {
	OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error)
	HasContent(d turnstone.Digest) bool
}

// A Sizer is an Alternate that knows the sizes of its contents. A large content of a size that no
// Alternate has is not hashed before it is stored.
type Sizer interface {
	HasSize(size int64) bool
}

// maxContent is the largest content whose list of chunks is a single object.
const maxContent = (MaxObject - 8) / listEntrySize * minChunk

// PutContent stores the size bytes of r: a single object, or many chunks and their list. A reader
// with more or fewer bytes is an error of kind Invalid. Contents of an Alternate are not stored.
func (b *Batch) PutContent(ctx context.Context, r io.Reader, size int64) (turnstone.Content,
	error) {
	if size < 0 || size > maxContent {
		return turnstone.Content{}, announced.Wrong(fmt.Sprintf("a content cannot have %d bytes", size))
	}
	if size > smallContent {
		return b.putLarge(ctx, r, size)
	}
	buf := b.s.bufs.Get(int(size))
	if err := announced.ReadExactly(r, buf.B); err != nil {
		buf.Release()
		return turnstone.Content{}, err
	}
	i := id(sha256.Sum256(buf.B))
	c := turnstone.Content{Digest: i.digest(), Size: size}
	name, have, err := b.has(ctx, i)
	switch {
	case err != nil:
		buf.Release()
		return c, err
	case have:
		buf.Release()
	case b.elsewhere(i):
		buf.Release()
		return c, nil
	default:
		if err := b.add(ctx, &job{buf: buf, id: i, name: name}); err != nil {
			return c, err
		}
	}
	b.need(name)
	return c, nil
}

// elsewhere returns the alternate that has d.
func (s *Store) elsewhere(d turnstone.Digest) Alternate {
	for _, a := range s.others() {
		if a.HasContent(d) {
			return a
		}
	}
	return nil
}

// mayBeElsewhere reports whether an alternate may have a content of size bytes.
func (s *Store) mayBeElsewhere(size int64) bool {
	for _, a := range s.others() {
		if z, ok := a.(Sizer); !ok || z.HasSize(size) {
			return true
		}
	}
	return false
}

// OpenContent opens a file's content. Every chunk is verified before its bytes are returned, and
// the whole content against c.Digest and c.Size before io.EOF.
func (s *Store) OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error) {
	return s.openContent(ctx, c, s.get)
}

// OpenContent opens a content of the batch or the store.
func (b *Batch) OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error) {
	return b.s.openContent(ctx, c, b.get)
}

type getter func(ctx context.Context, i id) ([]byte, error)

func (s *Store) openContent(ctx context.Context, c turnstone.Content, get getter) (io.ReadCloser,
	error) {
	const op = "store.open"
	want, err := parseID(op, c.Digest)
	if err != nil {
		return nil, err
	}
	if c.Size < 0 || c.Size > maxContent {
		return nil, damaged(op, string(c.Digest),
			fmt.Errorf("a content cannot have %d bytes", c.Size))
	}
	r := &contentReader{ctx: ctx, get: get, want: want, left: c.Size}
	if c.Chunks != "" {
		list, err := parseID(op, c.Chunks)
		if err != nil {
			return nil, err
		}
		b, err := get(ctx, list)
		if err == nil {
			if r.chunks, err = decodeList(b, c.Size); err != nil {
				return nil, damaged(op, string(c.Chunks), err)
			}
			r.sum = sha256.New()
			return r, nil
		}
		if a := s.elsewhere(c.Digest); a != nil {
			return openAlternate(ctx, a, c, want)
		}
		return nil, err
	}
	// Contents of alternates are not in the store, where a miss is expensive.
	if a := s.elsewhere(c.Digest); a != nil {
		if have, err := s.known(ctx, want); err == nil && !have {
			return openAlternate(ctx, a, c, want)
		}
	}
	b, err := get(ctx, want)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) != c.Size {
		return nil, damaged(op, string(c.Digest),
			fmt.Errorf("the content has %d bytes, not %d", len(b), c.Size))
	}
	r.have = b
	return r, nil
}

// A contentReader reads a content object by object and verifies each object.
type contentReader struct {
	ctx    context.Context
	get    getter
	want   id
	left   int64
	chunks []chunk
	last   chunk     // the current object
	object []byte    // all of it, verified: the holes of a sparse file repeat one object
	have   []byte    // the rest of the current object
	sum    hash.Hash // of the whole content; nil for a single object, whose digest is the content's
	err    error
}

func (r *contentReader) Read(p []byte) (int, error) {
	if r.err == nil && len(r.have) == 0 {
		r.err = r.next()
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(p, r.have)
	r.have = r.have[n:]
	r.left -= int64(n)
	return n, nil
}

// WriteTo implements io.WriterTo.
func (r *contentReader) WriteTo(w io.Writer) (int64, error) {
	var sum int64
	for {
		if r.err == nil && len(r.have) == 0 {
			r.err = r.next()
		}
		if r.err == io.EOF {
			return sum, nil
		}
		if r.err != nil {
			return sum, r.err
		}
		n, err := w.Write(r.have)
		sum += int64(n)
		r.left -= int64(n)
		r.have = r.have[n:]
		if err != nil {
			return sum, err
		}
	}
}

// next reads the next object, or verifies the whole content at its end.
func (r *contentReader) next() error {
	if r.left == 0 {
		if r.sum != nil && id(r.sum.Sum(nil)) != r.want {
			return damaged("store.open", string(r.want.digest()),
				errors.New("its chunks are those of another content"))
		}
		return io.EOF
	}
	c := r.chunks[0]
	r.chunks = r.chunks[1:]
	if r.object == nil || c != r.last {
		b, err := r.get(r.ctx, c.id)
		if err != nil {
			return err
		}
		if len(b) != int(c.size) {
			return damaged("store.open", string(c.id.digest()),
				fmt.Errorf("the chunk has %d bytes, not %d", len(b), c.size))
		}
		r.last, r.object = c, b
	}
	_, _ = r.sum.Write(r.object)
	r.have = r.object
	return nil
}

func (r *contentReader) Close() error {
	if r.err == nil {
		r.err = errors.New("the content is closed")
	}
	r.have, r.object = nil, nil
	return nil
}

// openAlternate opens a content of an alternate: a small content is verified before it is returned,
// a large content at its end.
func openAlternate(ctx context.Context, a Alternate, c turnstone.Content, want id) (io.ReadCloser,
	error) {
	rc, err := a.OpenContent(ctx, turnstone.Content{Digest: c.Digest, Size: c.Size})
	if err != nil {
		return nil, err
	}
	v := announced.NewCopy(rc, c.Size, want, func(err error) error {
		return damaged("store.open", string(want.digest()), err)
	})
	if c.Size > smallContent {
		return v, nil
	}
	b := make([]byte, c.Size)
	_, err = io.ReadFull(v, b)
	if err == nil {
		_, err = io.ReadFull(v, make([]byte, 1)) // io.EOF after the verification
	}
	if cerr := rc.Close(); (err == nil || err == io.EOF) && cerr != nil {
		return nil, fail("store.open", string(c.Digest), cerr)
	}
	if err != io.EOF {
		return nil, err
	}
	return &contentReader{have: b, left: c.Size, want: want}, nil
}

// ContentObjects returns the digests of the store's objects that c consists of, the list of chunks
// first; none if an alternate has c. Missing objects are included.
func (s *Store) ContentObjects(ctx context.Context, c turnstone.Content) ([]turnstone.Digest,
	error) {
	const op = "store.objects"
	want, err := parseID(op, c.Digest)
	if err != nil {
		return nil, err
	}
	if c.Chunks == "" {
		if s.elsewhere(c.Digest) != nil {
			if have, err := s.known(ctx, want); err != nil || !have {
				return nil, err
			}
		}
		return []turnstone.Digest{c.Digest}, nil
	}
	list, err := parseID(op, c.Chunks)
	if err != nil {
		return nil, err
	}
	b, err := s.get(ctx, list)
	if err != nil {
		return nil, err
	}
	chunks, err := decodeList(b, c.Size)
	if err != nil {
		return nil, damaged(op, string(c.Chunks), err)
	}
	all := make([]turnstone.Digest, 0, len(chunks)+1)
	all = append(all, c.Chunks)
	for _, k := range chunks {
		all = append(all, k.id.digest())
	}
	return all, nil
}
