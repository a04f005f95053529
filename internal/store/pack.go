package store

import (
	"errors"
	"io"
	"sync"
)

// slabSize is the unit of memory for building packs.
const slabSize = 1 << 20

// slabs are bytes in memory that grow without being copied.
type slabs struct {
	parts []*[slabSize]byte
	n     int64
	pool  *sync.Pool
}

func (s *slabs) append(p []byte) {
	for len(p) > 0 {
		at := int(s.n % slabSize)
		if at == 0 {
			s.parts = append(s.parts, s.pool.Get().(*[slabSize]byte))
		}
		k := copy(s.parts[len(s.parts)-1][at:], p)
		p = p[k:]
		s.n += int64(k)
	}
}

// readAt fills p from off on.
func (s *slabs) readAt(p []byte, off int64) error {
	if off+int64(len(p)) > s.n || s.parts == nil && len(p) > 0 {
		return io.ErrUnexpectedEOF
	}
	for len(p) > 0 {
		k := copy(p, s.parts[off/slabSize][off%slabSize:])
		p, off = p[k:], off+int64(k)
	}
	return nil
}

// free releases the memory.
func (s *slabs) free() {
	for _, p := range s.parts {
		s.pool.Put(p)
	}
	s.parts = nil
}

// reader reads the slabs, any number of times, from any offset.
func (s *slabs) reader() *slabReader { return &slabReader{s: s} }

var (
	_ io.WriterTo = (*slabReader)(nil)
	_ io.ReaderAt = (*slabReader)(nil)
)

type slabReader struct {
	s   *slabs
	off int64
}

func (r *slabReader) Read(p []byte) (int, error) {
	n, err := r.ReadAt(p, r.off)
	r.off += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt.
func (r *slabReader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= r.s.n && len(p) > 0 {
		return 0, io.EOF
	}
	short := int64(len(p)) > r.s.n-off
	if short {
		p = p[:r.s.n-off]
	}
	if err := r.s.readAt(p, off); err != nil {
		return 0, err
	}
	if short {
		return len(p), io.EOF
	}
	return len(p), nil
}

// Seek implements io.Seeker: a Put over a network may need to repeat the data.
func (r *slabReader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += r.off
	case io.SeekEnd:
		off += r.s.n
	}
	if off < 0 {
		return 0, errors.New("an offset before the start")
	}
	r.off = off
	return off, nil
}

// WriteTo implements io.WriterTo without a copy.
func (r *slabReader) WriteTo(w io.Writer) (int64, error) {
	var sum int64
	for r.off < r.s.n {
		at := r.off % slabSize
		n, err := w.Write(r.s.parts[r.off/slabSize][at:min(slabSize, at+r.s.n-r.off)])
		sum += int64(n)
		r.off += int64(n)
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// A pack is a pack under construction.
type pack struct {
	id      id // valid after the pack is finished
	data    slabs
	entries []packEntry
	raw     int64
	written bool // the pack is a blob; data is no longer in memory
}

func newPackIn(pool *sync.Pool) *pack {
	p := &pack{data: slabs{pool: pool}}
	p.data.append([]byte(packMagic))
	return p
}

// add appends the stored form of an object of size bytes.
func (p *pack) add(i id, stored []byte, size int) packEntry {
	e := packEntry{id: i, off: uint32(p.data.n), stored: uint32(len(stored)), size: uint32(size)}
	p.data.append(stored)
	p.entries = append(p.entries, e)
	p.raw += int64(size)
	return e
}

// indexed returns the index's data of the finished pack.
func (p *pack) indexed() *newPack {
	return &newPack{packInfo: packInfo{id: p.id, size: p.data.n, raw: p.raw,
		objects: uint32(len(p.entries))}, entries: p.entries}
}
