package store

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"

	"turnstone.dev/turnstone/internal/store/seal"
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

// ReadAt implements io.ReaderAt.
func (s *slabs) ReadAt(p []byte, off int64) (n int, err error) {
	if s.parts == nil && s.n > 0 {
		return 0, io.ErrUnexpectedEOF // free has released the bytes
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

// free releases the memory.
func (s *slabs) free() {
	for _, p := range s.parts {
		s.pool.Put(p)
	}
	s.parts = nil
}

// reader reads the slabs, any number of times, from any offset: a Put over a network may need to
// repeat the data.
func (s *slabs) reader() slabReader { return slabReader{io.NewSectionReader(s, 0, s.n), s} }

type slabReader struct {
	*io.SectionReader
	s *slabs
}

// WriteTo implements io.WriterTo without a copy.
func (r slabReader) WriteTo(w io.Writer) (sum int64, err error) {
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

// A pack is a pack under construction.
type pack struct {
	id      id      // valid after the pack is finished
	domain  seal.ID // zero: its objects are public
	data    slabs
	entries []packEntry
	raw     int64
	written bool // the pack is a blob; data is no longer in memory
}

func newPackIn(pool *sync.Pool, domain seal.ID) *pack {
	p := &pack{domain: domain, data: slabs{pool: pool}}
	p.data.append(packHeader(domain))
	return p
}

// packHeader returns the beginning of a pack.
func packHeader(domain seal.ID) []byte {
	if domain.IsZero() {
		return []byte(packMagic)
	}
	return append([]byte(sealedMagic), domain[:]...)
}

// newEntry returns the entry of a public object of size bytes, or of a sealed object.
func newEntry(i id, stored []byte, size int, sealed bool) packEntry {
	if sealed {
		return packEntry{id: i, sum: checksum(stored), sealed: true}
	}
	return packEntry{id: i, size: uint32(size)}
}

func checksum(stored []byte) uint32 { return crc32.Checksum(stored, castagnoli) }

// add appends the stored form of an object, and sets its place in the entry.
func (p *pack) add(e packEntry, stored []byte) packEntry {
	e.off, e.stored = uint32(p.data.n), uint32(len(stored))
	p.data.append(stored)
	p.entries = append(p.entries, e)
	p.raw += e.bytes()
	return e
}

// bytes returns the size of an object, or what is known of it without a key: its stored size.
func (e packEntry) bytes() int64 {
	if e.sealed {
		return int64(e.stored)
	}
	return int64(e.size)
}

// table returns the pack's table with the checksum, and the pack's name. No object is added after
// it. The entries of sealed objects have checksums of their own.
func (p *pack) table() ([]byte, id) {
	table, name := encodeTable(p.entries, p.domain)
	if p.domain.IsZero() {
		sum := crc32.New(castagnoli)
		_, _ = p.data.reader().WriteTo(sum) // a hash returns no error
		binary.LittleEndian.PutUint32(table[len(table)-sumOffset:], packSum(sum.Sum32()))
	}
	return table, name
}

// indexed returns the index's data of the finished pack.
func (p *pack) indexed() *newPack {
	return &newPack{packInfo: packInfo{id: p.id, size: p.data.n, raw: p.raw, domain: p.domain,
		objects: uint32(len(p.entries))}, entries: p.entries}
}
