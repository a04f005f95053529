package process

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	chunkSize = 60 << 10 // bytes; size of a read and of a frame: wire.SendChunk
	// firstSize is a stream's first chunk size, so that a silent process costs almost nothing.
	firstSize  = 1 << 10
	secondSize = 8 << 10
	keepBytes  = 1 << 20 // default number of bytes kept per stream
	keepLess   = 128 << 10
	// budget is the total for all streams above which each keeps only keepLess: many processes with
	// much output must not exhaust the agent's memory.
	budget     = 16 << 20
	spareMax   = 16 // chunks on the free list
	maxReaders = 64 // per stream
)

// A chunk is a part of a stream's bytes.
type chunk struct {
	off  int64 // of its first byte in the stream
	n    int   // number of its bytes
	buf  []byte
	pins int  // readers that currently use buf
	gone bool // dropped from its log
}

func (c *chunk) end() int64 { return c.off + int64(c.n) }

// chunks is a free list of buffers. Unlike a sync.Pool it survives garbage collections, so that a
// restored agent finds them in warm memory.
type chunks struct {
	free chan []byte
	used atomic.Int64 // total bytes in logs
}

func newChunks() *chunks { return &chunks{free: make(chan []byte, spareMax)} }

func (p *chunks) get(size int) []byte {
	p.used.Add(int64(size))
	if size != chunkSize {
		return make([]byte, size)
	}
	select {
	case b := <-p.free:
		return b
	default:
		return make([]byte, chunkSize)
	}
}

func (p *chunks) put(b []byte) {
	p.used.Add(-int64(len(b)))
	if len(b) != chunkSize {
		return
	}
	select {
	case p.free <- b:
	default:
	}
}

// A Rank says whether a writer waits for a reader.
type Rank int

// The ranks of readers.
const (
	Follower Rank = iota // only if it is the first
	Owner                // unless another owner came later
	Recorder             // always
)

// A Log keeps the newest bytes of an output stream, in order, with offsets from its beginning. A
// single goroutine writes; any number of Readers read. While the first reader, or a recorder, is
// behind by the bound, the writer waits; the others do not block it and lose dropped bytes. Without
// readers the oldest bytes are dropped.
type Log struct {
	pool *chunks
	keep int64

	mu      sync.Mutex
	changed sync.Cond
	chunks  []*chunk // oldest first
	first   int64    // offset of the oldest byte that is kept
	size    int64    // total bytes so far
	ended   bool     // no more bytes will arrive
	hurried bool     // the writer no longer waits for readers
	readers []*Reader

	lag  int64 // bytes that are kept before the first reader; -1: no reader is waited for
	away bool  // the first reader has left, and the writer waits for another
	left int64 // where it has left
}

func newLog(pool *chunks, keep int64) *Log {
	l := &Log{pool: pool, keep: keep, lag: -1}
	l.changed.L = &l.mu
	return l
}

// Hold makes the writer wait for another owner when an owner has left, and keeps lag bytes before
// the owner's offset, which may not have arrived, as long as the budget allows. A nil Log has no
// owner.
func (l *Log) Hold(lag int64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lag = lag
}

// Release reverts Hold.
func (l *Log) Release() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lag, l.away = -1, false
	l.changed.Broadcast()
}

// Range returns the offsets of the oldest byte that is kept and of the byte after the newest. A nil
// Log is empty.
func (l *Log) Range() (first, end int64) {
	if l == nil {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.size
}

// bound returns the number of bytes to keep now. l.mu is held.
func (l *Log) bound() int64 {
	if l.pool.used.Load() > budget {
		return min(l.keep, keepLess)
	}
	return l.keep
}

// oldest returns the offset of the reader that the writer waits for. l.mu is held.
func (l *Log) oldest() int64 {
	at, first := l.size, true
	if l.away { // the others are not waited for
		at, first = l.left, false
	}
	for _, r := range l.readers {
		if r.recorder || first {
			at = min(at, r.off)
		}
		first = first && r.recorder
	}
	return at
}

// room waits while the first reader is too far behind, and returns the buffer for the next bytes;
// nil after the end.
func (l *Log) room() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended && !l.hurried && l.size-l.oldest() >= l.bound() {
		l.changed.Wait()
	}
	if l.ended {
		return nil
	}
	if k := len(l.chunks); k == 0 || l.chunks[k-1].n == len(l.chunks[k-1].buf) {
		l.chunks = append(l.chunks, &chunk{off: l.size, buf: l.pool.get(l.next())})
	}
	last := l.chunks[len(l.chunks)-1]
	return last.buf[last.n:]
}

// next returns the size of the next chunk. l.mu is held.
func (l *Log) next() int {
	switch {
	case l.size == 0:
		return firstSize
	case l.size < secondSize:
		return secondSize
	}
	return chunkSize
}

// hurry makes the writer no longer wait for readers, because little remains to be written. The
// first reader loses nothing.
func (l *Log) hurry() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hurried = true
	l.changed.Broadcast()
}

// wrote reports that n bytes were written to room's buffer.
func (l *Log) wrote(n int) {
	if n <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.chunks[len(l.chunks)-1].n += n
	l.size += int64(n)
	bound, read := l.bound(), l.oldest()
	if l.lag > 0 && bound == l.keep {
		read -= l.lag
	}
	for len(l.chunks) > 1 && l.size-l.chunks[0].end() >= bound && l.chunks[0].end() <= read {
		l.drop()
	}
	l.changed.Broadcast()
}

// drop drops the oldest chunk. l.mu is held.
func (l *Log) drop() {
	c := l.chunks[0]
	l.chunks[0] = nil
	l.chunks = l.chunks[1:]
	l.first = c.end()
	c.gone = true
	l.free(c)
}

// free releases a chunk's buffer if it is unused. l.mu is held.
func (l *Log) free(c *chunk) {
	if c.gone && c.pins == 0 && c.buf != nil {
		l.pool.put(c.buf)
		c.buf = nil
	}
}

// end marks the log's end.
func (l *Log) end() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		l.trim()
	}
	l.changed.Broadcast()
}

// trim releases the last chunk's unused part, because an ended process may be kept for long. l.mu
// is held.
func (l *Log) trim() {
	if len(l.chunks) == 0 {
		return
	}
	c := l.chunks[len(l.chunks)-1]
	if c.pins > 0 || c.n > len(c.buf)/2 {
		return
	}
	small := append(make([]byte, 0, c.n), c.buf[:c.n]...)
	l.pool.put(c.buf)
	l.pool.used.Add(int64(len(small)))
	c.buf = small
}

// forget releases everything that is kept.
func (l *Log) forget() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for len(l.chunks) > 0 {
		l.drop()
	}
	l.changed.Broadcast()
}

// A Reader reads a Log from an offset on. It belongs to a single goroutine, but Close may be called
// from any.
type Reader struct {
	l        *Log
	off      int64 // of the next byte
	pinned   *chunk
	recorder bool
	owner    bool
	closed   bool
	stop     func() bool
}

// Attach returns a reader that begins at offset from, or at the oldest kept byte if that is later;
// offset is the actual start. rank says whether the writer waits for the reader. The reader is
// closed when ctx ends. It is nil if the log has its maximum number of readers.
func (l *Log) Attach(ctx context.Context, from int64, rank Rank) (r *Reader, offset int64) {
	l.mu.Lock()
	if len(l.readers) >= maxReaders && rank != Recorder {
		l.mu.Unlock()
		return nil, 0
	}
	r = &Reader{l: l, off: min(max(from, l.first), l.size), recorder: rank == Recorder,
		owner: rank == Owner}
	if rank == Owner {
		l.away = false
		l.readers = append([]*Reader{r}, l.readers...)
	} else {
		l.readers = append(l.readers, r)
	}
	offset = r.off
	l.mu.Unlock()
	r.stop = context.AfterFunc(ctx, r.detach)
	return r, offset
}

// Next returns the next bytes, at most limit, and their offset. It waits for bytes; ok is false at
// the end or after Close. If bytes were dropped before they were read, the offset follows them, and
// data may be empty. data is valid until the next call of Next or Close.
func (r *Reader) Next(limit int) (data []byte, offset int64, ok bool) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	r.unpin()
	for !r.closed && !l.ended && r.off == l.size {
		l.changed.Wait()
	}
	if r.closed || r.off >= l.size {
		return nil, 0, false
	}
	if r.off < l.first { // dropped
		if r.off = l.first; r.off == l.size {
			return nil, r.off, true
		}
	}
	for i := len(l.chunks) - 1; i >= 0; i-- {
		if c := l.chunks[i]; c.off <= r.off {
			data = c.buf[r.off-c.off : c.n]
			data = data[:min(len(data), limit)]
			c.pins++
			r.pinned = c
			break
		}
	}
	offset = r.off
	r.off += int64(len(data))
	l.changed.Broadcast()
	return data, offset, len(data) > 0
}

// unpin releases the bytes that Next returned. l.mu is held.
func (r *Reader) unpin() {
	if c := r.pinned; c != nil {
		r.pinned = nil
		c.pins--
		r.l.free(c)
	}
}

// Close ends the reader, which no longer blocks the writer. The goroutine that calls Next calls
// Close.
func (r *Reader) Close() {
	r.stop()
	r.detach()
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.unpin()
}

// detach makes Next return, and lets the log continue without this reader. Bytes that Next returned
// stay valid until Close.
func (r *Reader) detach() {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	if r.owner && l.lag >= 0 && l.readers[0] == r {
		l.away, l.left = true, r.off
	}
	l.readers = slices.DeleteFunc(l.readers, func(other *Reader) bool { return other == r })
	l.changed.Broadcast()
}
