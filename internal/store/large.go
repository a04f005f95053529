package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"sync"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	"github.com/PlakarKorp/go-cdc-chunkers/chunkers/jc"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/memory"
	"turnstone.dev/turnstone/internal/store/seal"
)

// putLarge cuts a content into chunks and hashes the whole content in parallel.
func (b *Batch) putLarge(ctx context.Context, r io.Reader, size int64) (turnstone.Content, error) {
	// An alternate's content must not be stored, and its digest is known only at the end: a reader
	// that can be read twice is hashed first.
	if b.s.domain == nil && b.s.mayBeElsewhere(size) {
		if again, ok := r.(io.Seeker); ok {
			c, err := b.hashFirst(ctx, r, again, size)
			if err != nil || c.Digest != "" {
				return c, err
			}
		}
	}
	src := &source{ctx: ctx, r: r, left: size}
	whole := newHashing()
	chunks, err := b.putChunks(ctx, src, whole, size)
	digest := whole.sum()
	if err == nil {
		err = src.end()
	}
	if err != nil {
		return turnstone.Content{}, err
	}
	c := turnstone.Content{Digest: digest.digest(), Size: size}
	if b.elsewhere(digest) {
		return c, nil // the chunks are garbage for Sweep
	}
	names := make([]id, len(chunks))
	for i, k := range chunks {
		if names[i], err = b.s.nameOf(k.id); err != nil {
			return turnstone.Content{}, err
		}
	}
	b.need(names...)
	c.Chunks, err = b.Put(ctx, encodeList(chunks))
	return c, err
}

// hashFirst returns the content if an alternate has it, and otherwise restores r's position.
func (b *Batch) hashFirst(ctx context.Context, r io.Reader, again io.Seeker,
	size int64) (turnstone.Content, error) {
	at, err := again.Seek(0, io.SeekCurrent)
	if err != nil {
		return turnstone.Content{}, nil // the reader cannot seek after all
	}
	src := &source{ctx: ctx, r: r, left: size}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, src, make([]byte, 256<<10)); err != nil {
		return turnstone.Content{}, fail("store.put", "", err)
	}
	if err := src.end(); err != nil {
		return turnstone.Content{}, err
	}
	if i := id(h.Sum(nil)); b.elsewhere(i) {
		return turnstone.Content{Digest: i.digest(), Size: size}, nil
	}
	_, err = again.Seek(at, io.SeekStart)
	return turnstone.Content{}, fail("store.put", "", err)
}

// A cutter finds the cuts of a content: jump-based chunking (Jin et al., IEEE TPDS 2023), which
// examines only a third of the bytes.
type cutter struct {
	algorithm jc.JC
	options   chunkers.ChunkerOpts
}

// newCutter returns the cutter of a domain; nil: the public one. Each domain has a table of its own,
// so that the sizes of a content's chunks do not show the content. The library would keep its tables
// of keys forever.
func newCutter(domain *seal.Domain) (*cutter, error) {
	c := &cutter{options: chunkers.ChunkerOpts{MinSize: minChunk,
		NormalSize: normalChunk, MaxSize: maxChunk}}
	err := c.algorithm.Setup(&c.options)
	if err == nil && domain != nil {
		c.algorithm.G, err = domain.Gear()
	}
	return c, err
}

// next returns the size of the first chunk of p, which has at least maxChunk bytes or is the rest
// of the content.
func (c *cutter) next(p []byte) int { return c.algorithm.Algorithm(&c.options, p, len(p)) }

const (
	arenaSize = 4 << 20 // chunks are cut in place in arenas
	maxArenas = 4       // per content
)

// A splitter puts the chunks of a content.
type splitter struct {
	b      *Batch
	cut    *cutter
	whole  *hashing
	tokens chan struct{} // one token per arena in use
	chunks []chunk
	done   sync.WaitGroup
}

// putChunks stores the chunks of src.
func (b *Batch) putChunks(ctx context.Context, src *source, whole *hashing,
	size int64) ([]chunk, error) {
	cut, err := newCutter(b.s.domain)
	if err != nil {
		return nil, err
	}
	// The background sets the chunks' digests: their memory must not move.
	s := &splitter{b: b, cut: cut, whole: whole, tokens: make(chan struct{}, maxArenas),
		chunks: make([]chunk, 0, size/minChunk+1)}
	err = s.split(ctx, src)
	if werr := s.wait(); err == nil {
		err = werr
	}
	return s.chunks, err
}

// split reads src into arenas and puts the chunks. src keeps its error.
func (s *splitter) split(ctx context.Context, src *source) error {
	var rest []byte // the beginning of a chunk that continues in the next arena
	var last *memory.Buffer
	defer func() {
		if last != nil {
			last.Release()
		}
	}()
	for end := false; !end; {
		arena, err := s.arena(ctx)
		if err != nil {
			return err
		}
		n := copy(arena.B, rest)
		if last != nil {
			last.Release()
		}
		last = arena
		m, err := io.ReadFull(src, arena.B[n:])
		if src.err != nil {
			return nil
		}
		end = err != nil
		for rest = arena.B[:n+m]; len(rest) >= maxChunk || end && len(rest) > 0; {
			k := s.cut.next(rest)
			if err := s.put(ctx, arena, rest[:k]); err != nil {
				return err
			}
			rest = rest[k:]
		}
	}
	return nil
}

// put passes a chunk, which is in arena, to the background.
func (s *splitter) put(ctx context.Context, arena *memory.Buffer, p []byte) error {
	s.chunks = append(s.chunks, chunk{size: uint32(len(p))})
	buf := arena.Part(p)
	s.whole.add(buf)
	s.done.Add(1)
	err := s.b.add(ctx, &job{buf: buf, chunk: &s.chunks[len(s.chunks)-1].id, done: &s.done})
	if err != nil {
		s.done.Done()
	}
	return err
}

// arena returns a free arena, waiting if necessary: the background frees this content's arenas.
func (s *splitter) arena(ctx context.Context) (*memory.Buffer, error) {
	select {
	case s.tokens <- struct{}{}:
	case <-ctx.Done():
		return nil, fail("store.put", "", ctx.Err())
	case <-s.b.ctx.Done():
		return nil, fail("store.put", "", s.b.ctx.Err())
	}
	b := s.b.s.bufs.Get(arenaSize)
	b.Tokens = s.tokens
	return b, nil
}

// wait waits for the chunks, whose digests are known then.
func (s *splitter) wait() error {
	waited := make(chan struct{})
	go func() {
		s.done.Wait()
		close(waited)
	}()
	select {
	case <-waited:
	case <-s.b.ctx.Done(): // the batch was closed
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.b.state()
}

// A source reads the announced number of bytes and remembers its error.
type source struct {
	ctx  context.Context
	r    io.Reader
	left int64
	err  error // other than io.EOF
}

func (s *source) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if s.err = s.ctx.Err(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// end verifies that all announced bytes were read and no more follow.
func (s *source) end() error {
	if s.err != nil {
		return fail("store.put", "", s.err)
	}
	if s.left > 0 {
		return wrongSize(fmt.Sprintf("the content is %d bytes shorter than announced", s.left))
	}
	return atEnd(s.r)
}

// hashing hashes a content in a separate goroutine.
type hashing struct {
	in  chan *memory.Buffer
	out chan id
}

func newHashing() *hashing {
	h := &hashing{in: make(chan *memory.Buffer, 16), out: make(chan id, 1)}
	go func() {
		sum := sha256.New()
		for buf := range h.in {
			_, _ = sum.Write(buf.B) // documented never to fail
			buf.Release()
		}
		h.out <- id(sum.Sum(nil))
	}()
	return h
}

func (h *hashing) add(b *memory.Buffer) {
	b.Retain()
	h.in <- b
}

// sum ends the hashing and returns the digest.
func (h *hashing) sum() id {
	close(h.in)
	return <-h.out
}
