package store

import (
	"encoding/binary"
	"hash/crc32"

	"turnstone.dev/turnstone/internal/store/memory"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A pack is a pack under construction.
type pack struct {
	id      id      // valid after the pack is finished
	domain  seal.ID // zero: its objects are public
	data    *memory.Slabs
	entries []packEntry
	raw     int64
	written bool // the pack is a blob; data is no longer in memory
}

func newPackIn(pool *memory.SlabPool, domain seal.ID) *pack {
	p := &pack{domain: domain, data: pool.NewSlabs()}
	p.data.Append(packHeader(domain))
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
	e.off, e.stored = uint32(p.data.Len()), uint32(len(stored))
	p.data.Append(stored)
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
		_, _ = p.data.Reader().WriteTo(sum) // a hash returns no error
		binary.LittleEndian.PutUint32(table[len(table)-sumOffset:], packSum(sum.Sum32()))
	}
	return table, name
}

// indexed returns the index's data of the finished pack.
func (p *pack) indexed() *newPack {
	return &newPack{packInfo: packInfo{id: p.id, size: p.data.Len(), raw: p.raw, domain: p.domain,
		objects: uint32(len(p.entries))}, entries: p.entries}
}
