// Package memory has the memory of objects on their way into a pack: buffers that are shared and
// reused, and packs that grow without being copied.
package memory

import (
	"sync"
	"sync/atomic"
)

// A Buffer holds the bytes of an object, or of several, shared by their readers.
type Buffer struct {
	B      []byte
	uses   atomic.Int32
	pool   *sync.Pool    // nil for a buffer that is not reused
	whole  *Buffer       // the buffer that contains this part
	Tokens chan struct{} // the buffer holds a token of this channel; nil: none
}

// Retain adds a use of b.
func (b *Buffer) Retain() { b.uses.Add(1) }

// Part returns a part of b, which keeps b in use.
func (b *Buffer) Part(p []byte) *Buffer {
	b.Retain()
	part := &Buffer{B: p, whole: b}
	part.uses.Store(1)
	return part
}

// Release ends a use of b. After the last, the memory is used again.
func (b *Buffer) Release() {
	if b.uses.Add(-1) != 0 {
		return
	}
	if b.whole != nil {
		b.whole.Release()
		return
	}
	if b.Tokens != nil {
		<-b.Tokens
		b.Tokens = nil
	}
	if b.pool != nil {
		b.pool.Put(b)
	}
}

// A Pool has buffers of 4 KiB to 4 MiB, in powers of two.
type Pool struct{ pools [11]sync.Pool }

// Get returns a buffer of n bytes with a single use.
func (p *Pool) Get(n int) *Buffer {
	size, pool := 4<<10, (*sync.Pool)(nil)
	for k := range p.pools {
		if n <= size {
			pool = &p.pools[k]
			break
		}
		size *= 2
	}
	var b *Buffer
	if pool == nil {
		b = &Buffer{B: make([]byte, n)}
	} else if b, _ = pool.Get().(*Buffer); b == nil {
		b = &Buffer{B: make([]byte, size), pool: pool}
	}
	b.B = b.B[:n]
	b.uses.Store(1)
	return b
}
