package memory

import (
	"io"
	"sync"
)

// slabSize is the unit of memory of Slabs.
const slabSize = 1 << 20

// A SlabPool has the memory of Slabs. The zero value is ready; it is safe for concurrent use.
type SlabPool struct{ pool sync.Pool }

func (p *SlabPool) get() *[slabSize]byte {
	if b, ok := p.pool.Get().(*[slabSize]byte); ok {
		return b
	}
	return new([slabSize]byte)
}

// NewSlabs returns empty Slabs whose memory is from the pool.
func (p *SlabPool) NewSlabs() *Slabs { return &Slabs{pool: p} }

// Slabs are bytes in memory that grow without being copied.
type Slabs struct {
	parts []*[slabSize]byte
	n     int64
	pool  *SlabPool
}

// Append appends p.
func (s *Slabs) Append(p []byte) {
	for len(p) > 0 {
		at := int(s.n % slabSize)
		if at == 0 {
			s.parts = append(s.parts, s.pool.get())
		}
		k := copy(s.parts[len(s.parts)-1][at:], p)
		p = p[k:]
		s.n += int64(k)
	}
}

// Len returns the number of bytes.
func (s *Slabs) Len() int64 { return s.n }

// ReadAt implements io.ReaderAt.
func (s *Slabs) ReadAt(p []byte, off int64) (n int, err error) {
	if s.parts == nil && s.n > 0 {
		return 0, io.ErrUnexpectedEOF // Free has released the bytes
	}
	for n < len(p) {
		if off >= s.n {
			return n, io.EOF
		}
		part := s.parts[off/slabSize][off%slabSize:]
		k := copy(p[n:], part[:min(int64(len(part)), s.n-off)])
		n, off = n+k, off+int64(k)
	}
	return n, nil
}

// Free releases the memory, but not the length. Reads then fail.
func (s *Slabs) Free() {
	for _, p := range s.parts {
		s.pool.pool.Put(p)
	}
	s.parts = nil
}

// Reader reads the slabs, any number of times, from any offset: a Put over a network may need to
// repeat the data.
func (s *Slabs) Reader() SlabReader { return SlabReader{io.NewSectionReader(s, 0, s.n), s} }

// A SlabReader reads Slabs.
type SlabReader struct {
	*io.SectionReader
	s *Slabs
}

// WriteTo implements io.WriterTo without a copy.
func (r SlabReader) WriteTo(w io.Writer) (sum int64, err error) {
	at, err := r.Seek(0, io.SeekCurrent)
	for at+sum < r.s.n && err == nil {
		off := at + sum
		var n int
		n, err = w.Write(r.s.parts[off/slabSize][off%slabSize : min(slabSize, off%slabSize+r.s.n-off)])
		sum += int64(n)
	}
	_, _ = r.Seek(at+sum, io.SeekStart) // within the section
	return sum, err
}
