package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/announced"
	"turnstone.dev/turnstone/internal/store/cut"
	"turnstone.dev/turnstone/internal/store/memory"
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
	src := announced.NewSource(ctx, r, size)
	whole := memory.NewHashing()
	chunks, err := b.putChunks(ctx, src, whole, size)
	digest := id(whole.Sum())
	if err == nil {
		err = src.End()
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
	src := announced.NewSource(ctx, r, size)
	h := sha256.New()
	if _, err := io.CopyBuffer(h, src, make([]byte, 256<<10)); err != nil {
		return turnstone.Content{}, fail("store.put", "", err)
	}
	if err := src.End(); err != nil {
		return turnstone.Content{}, err
	}
	if i := id(h.Sum(nil)); b.elsewhere(i) {
		return turnstone.Content{Digest: i.digest(), Size: size}, nil
	}
	_, err = again.Seek(at, io.SeekStart)
	return turnstone.Content{}, fail("store.put", "", err)
}

const (
	arenaSize = 4 << 20 // chunks are cut in place in arenas
	maxArenas = 4       // per content
)

// A splitter puts the chunks of a content.
type splitter struct {
	b      *Batch
	cut    *cut.Cutter
	whole  *memory.Hashing
	tokens chan struct{} // one token per arena in use
	chunks []chunk
	done   sync.WaitGroup

	// The latest chunk that differs from the one before; nil: none yet. Those after it that do not differ
	// have no digest until the end: comparing is ten times as fast as hashing, and the holes of a sparse
	// file have nothing else.
	last *memory.Buffer
}

// putChunks stores the chunks of src.
func (b *Batch) putChunks(ctx context.Context, src *announced.Source, whole *memory.Hashing,
	size int64) ([]chunk, error) {
	cutter, err := cut.New(b.s.domain)
	if err != nil {
		return nil, err
	}
	// The background sets the chunks' digests: their memory must not move.
	s := &splitter{b: b, cut: cutter, whole: whole, tokens: make(chan struct{}, maxArenas),
		chunks: make([]chunk, 0, size/minChunk+1)}
	err = s.split(ctx, src)
	if s.last != nil {
		s.last.Release()
	}
	if werr := s.wait(); err == nil {
		err = werr
	}
	if err != nil {
		return nil, err
	}
	for i := range s.chunks {
		if s.chunks[i].id == (id{}) { // the first one has a digest
			s.chunks[i].id = s.chunks[i-1].id
		}
	}
	return s.chunks, nil
}

// split reads src into arenas and puts the chunks. src keeps its error.
func (s *splitter) split(ctx context.Context, src *announced.Source) error {
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
		if src.Err != nil {
			return nil
		}
		end = err != nil
		for rest = arena.B[:n+m]; len(rest) >= maxChunk || end && len(rest) > 0; {
			k := s.cut.Next(rest)
			if err := s.put(ctx, arena, rest[:k]); err != nil {
				return err
			}
			rest = rest[k:]
		}
	}
	return nil
}

// put passes a chunk, which is in arena, to the background, unless it has the bytes of the one before.
func (s *splitter) put(ctx context.Context, arena *memory.Buffer, p []byte) error {
	s.chunks = append(s.chunks, chunk{size: uint32(len(p))})
	buf := arena.Part(p)
	s.whole.Add(buf)
	if s.last != nil && bytes.Equal(s.last.B, p) {
		buf.Release()
		return nil
	}
	if s.last != nil {
		s.last.Release()
	}
	buf.Retain()
	s.last = buf
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
