package store

import (
	"sync"
	"sync/atomic"
)

// A buffer holds the bytes of an object, or of several, shared by their readers.
type buffer struct {
	b      []byte
	uses   atomic.Int32
	pool   *sync.Pool    // nil for a buffer that is not reused
	whole  *buffer       // the buffer that contains this part
	tokens chan struct{} // the buffer holds a token of this channel
}

func (b *buffer) retain() { b.uses.Add(1) }

// part returns a part of b, which keeps b in use.
func (b *buffer) part(p []byte) *buffer {
	b.retain()
	part := &buffer{b: p, whole: b}
	part.uses.Store(1)
	return part
}

func (b *buffer) release() {
	if b.uses.Add(-1) != 0 {
		return
	}
	if b.whole != nil {
		b.whole.release()
		return
	}
	if b.tokens != nil {
		<-b.tokens
		b.tokens = nil
	}
	if b.pool != nil {
		b.pool.Put(b)
	}
}

// A bufferPool has buffers of 4 KiB to 4 MiB, in powers of two.
type bufferPool struct{ pools [11]sync.Pool }

// get returns a buffer of n bytes with a single use.
func (p *bufferPool) get(n int) *buffer {
	size, pool := 4<<10, (*sync.Pool)(nil)
	for k := range p.pools {
		if n <= size {
			pool = &p.pools[k]
			break
		}
		size *= 2
	}
	var b *buffer
	if pool == nil {
		b = &buffer{b: make([]byte, n)}
	} else if b, _ = pool.Get().(*buffer); b == nil {
		b = &buffer{b: make([]byte, size), pool: pool}
	}
	b.b = b.b[:n]
	b.uses.Store(1)
	return b
}
