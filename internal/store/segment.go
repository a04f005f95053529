package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"slices"
	"sync/atomic"

	"turnstone.dev/turnstone/internal/store/seal"
)

// A segment is a file of the index: objects sorted by their ids, with their places. It is written
// once and never changed. Its blocks are read on demand, verified, and cached.
//
//	header  magic, packs, blocks, entries, checksum of header and pack table
//	table   a packInfo for each pack
//	blocks  of 4096 bytes: up to 85 entries, their number, checksum
const (
	segMagic      = "TURNIDX1"
	sealedSegment = "TURNIDX2" // names the domains of packs
	segHeaderSize = 32
	segPackSize   = 56
	segEntrySize  = 48
	blockSize     = 4096
	blockEntries  = (blockSize - 8) / segEntrySize
)

// packInfo is the index's data of a whole pack.
type packInfo struct {
	id      id
	size    int64 // of the blob
	raw     int64 // of its objects, uncompressed; as stored if they are sealed
	objects uint32
	domain  seal.ID // zero: its objects are public
}

// A place is the location of an object.
type place struct {
	packEntry
	pack   id
	domain seal.ID // of the pack
}

// errSegment is the error of an untrusted segment.
var errSegment = errors.New("the index is damaged")

type segment struct {
	name    string
	f       *os.File // closed after the segment's last use
	packs   []packInfo
	entries int
	blocks  []atomic.Pointer[block]
	start   int64 // offset of the first block
}

type block struct {
	b [blockSize]byte
	n int
}

func (b *block) id(i int) []byte { return b.b[i*segEntrySize : i*segEntrySize+32] }

// openSegment reads the header and the table of packs.
func openSegment(path, name string) (*segment, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := readSegment(f, name)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

func readSegment(f *os.File, name string) (*segment, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var h [segHeaderSize]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return nil, segErr(name, err)
	}
	packs := int64(binary.LittleEndian.Uint32(h[8:]))
	blocks := int64(binary.LittleEndian.Uint32(h[12:]))
	entries := int64(binary.LittleEndian.Uint32(h[16:]))
	size := segmentPackSize(string(h[:8]) == sealedSegment)
	start := segHeaderSize + packs*int64(size)
	if magic := string(h[:8]); magic != segMagic && magic != sealedSegment ||
		info.Size() != start+blocks*blockSize ||
		blocks != (entries+blockEntries-1)/blockEntries {
		return nil, segErr(name, errors.New("its lengths are wrong"))
	}
	table := make([]byte, start-segHeaderSize) // no longer than the file
	if _, err := f.ReadAt(table, segHeaderSize); err != nil {
		return nil, segErr(name, err)
	}
	sum := crc32.Update(crc32.Checksum(h[:segHeaderSize-4], castagnoli), castagnoli, table)
	if sum != binary.LittleEndian.Uint32(h[segHeaderSize-4:]) {
		return nil, segErr(name, errors.New("its checksum is wrong"))
	}
	s := &segment{name: name, f: f, entries: int(entries), start: start,
		packs: make([]packInfo, 0, packs), blocks: make([]atomic.Pointer[block], blocks)}
	for ; len(table) > 0; table = table[size:] {
		p := packInfo{id: id(table[:32]),
			size:    int64(binary.LittleEndian.Uint64(table[32:])),
			raw:     int64(binary.LittleEndian.Uint64(table[40:])),
			objects: binary.LittleEndian.Uint32(table[48:])}
		if size > segPackSize {
			p.domain = seal.ID(table[segPackSize:size])
		}
		s.packs = append(s.packs, p)
	}
	return s, nil
}

// segmentPackSize returns the size of a pack's entry in the header of a segment.
func segmentPackSize(sealed bool) int {
	if sealed {
		return segPackSize + len(seal.ID{})
	}
	return segPackSize
}

func segErr(name string, err error) error {
	return fmt.Errorf("%w: segment %s: %w", errSegment, name, err)
}

// block returns a verified block.
func (s *segment) block(i int) (*block, error) {
	if b := s.blocks[i].Load(); b != nil {
		return b, nil
	}
	b := &block{}
	if _, err := s.f.ReadAt(b.b[:], s.start+int64(i)*blockSize); err != nil {
		return nil, segErr(s.name, err)
	}
	if err := b.check(); err != nil {
		return nil, segErr(s.name, err)
	}
	last := s.entries - (len(s.blocks)-1)*blockEntries
	if full := i < len(s.blocks)-1; full && b.n != blockEntries || !full && b.n != last {
		return nil, segErr(s.name, errors.New("a block is not full"))
	}
	s.blocks[i].Store(b)
	return b, nil
}

// check verifies a block's checksum and reads its number of entries.
func (b *block) check() error {
	end := b.b[blockSize-8:]
	if crc32.Checksum(b.b[:blockSize-4], castagnoli) != binary.LittleEndian.Uint32(end[4:]) {
		return errors.New("a block's checksum is wrong")
	}
	b.n = int(binary.LittleEndian.Uint32(end))
	if b.n < 1 || b.n > blockEntries {
		return errors.New("a block's number of entries is wrong")
	}
	return nil
}

// place decodes an entry.
func (s *segment) place(b *block, i int) (place, error) {
	e := b.b[i*segEntrySize:]
	n := binary.LittleEndian.Uint32(e[32:])
	if n >= uint32(len(s.packs)) {
		return place{}, segErr(s.name, errors.New("an entry is impossible"))
	}
	p := place{pack: s.packs[n].id, domain: s.packs[n].domain}
	p.packEntry = makeEntry(id(e[:32]), binary.LittleEndian.Uint32(e[36:]),
		binary.LittleEndian.Uint32(e[40:]), binary.LittleEndian.Uint32(e[44:]),
		!p.domain.IsZero())
	if p.check() != nil {
		return place{}, segErr(s.name, errors.New("an entry is impossible"))
	}
	return p, nil
}

// find appends the places of want to to.
func (s *segment) find(want id, to []place) ([]place, error) {
	i, err := s.findBlock(want)
	if err != nil {
		return to, err
	}
	for ; i >= 0 && i < len(s.blocks); i++ {
		b, err := s.block(i)
		if err != nil {
			return to, err
		}
		k := b.search(want)
		for ; k < b.n && bytes.Equal(b.id(k), want[:]); k++ {
			p, err := s.place(b, k)
			if err != nil {
				return to, err
			}
			to = append(to, p)
		}
		if k < b.n { // the next block begins with a greater id
			break
		}
	}
	return to, nil
}

// search returns the first entry of b that is not less than want.
func (b *block) search(want id) int {
	lo, hi := 0, b.n
	for lo < hi {
		m := (lo + hi) / 2
		if bytes.Compare(b.id(m), want[:]) < 0 {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// findBlock returns the first block whose last entry is not less than want. Digests are spread
// evenly, so the block is near the position that want itself suggests: the search starts there,
// moves away in growing steps, and then halves.
func (s *segment) findBlock(want id) (int, error) {
	lo, hi := 0, len(s.blocks)
	m := int(uint64(binary.BigEndian.Uint32(want[:])) * uint64(hi) >> 32)
	up, down, step := false, false, 1
	for lo < hi {
		b, err := s.block(m)
		if err != nil {
			return 0, err
		}
		if bytes.Compare(b.id(b.n-1), want[:]) < 0 {
			lo, up = m+1, true
		} else if m == lo || bytes.Compare(b.id(0), want[:]) < 0 {
			return m, nil
		} else {
			hi, down = m, true
		}
		switch {
		case up && down:
			m = (lo + hi) / 2
		case up:
			m = min(lo+step-1, hi-1)
		default:
			m = max(hi-step, lo)
		}
		step *= 4
	}
	return lo, nil
}

// all yields every place in the order of ids.
func (s *segment) all() iter.Seq2[place, error] {
	return func(yield func(place, error) bool) {
		for i := range s.blocks {
			b, err := s.block(i)
			if err != nil {
				yield(place{}, err)
				return
			}
			for k := range b.n {
				p, err := s.place(b, k)
				if !yield(p, err) || err != nil {
					return
				}
			}
		}
	}
}

// check reads and verifies a whole segment again.
func (s *segment) check(ctx context.Context) error {
	var last place
	n := 0
	fresh, err := readSegment(s.f, s.name)
	if err != nil {
		return err
	}
	for p, err := range fresh.all() {
		if err != nil {
			return err
		}
		if n++; n > 1 && comparePlaces(last, p) > 0 {
			return segErr(s.name, errors.New("its entries are not sorted"))
		}
		last = p
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if n != s.entries {
		return segErr(s.name, errors.New("entries are missing"))
	}
	return nil
}

// writeSegment writes a segment of the places, which arrive sorted. n is their number.
func writeSegment(w io.Writer, packs []packInfo, n int, places iter.Seq2[place, error]) error {
	number := make(map[id]uint32, len(packs))
	sealed := slices.ContainsFunc(packs, func(p packInfo) bool { return !p.domain.IsZero() })
	head := make([]byte, segHeaderSize, segHeaderSize+len(packs)*segmentPackSize(sealed))
	copy(head, segMagic) // older programs read the index of a store without sealed objects
	if sealed {
		copy(head, sealedSegment)
	}
	binary.LittleEndian.PutUint32(head[8:], uint32(len(packs)))
	binary.LittleEndian.PutUint32(head[12:], uint32((n+blockEntries-1)/blockEntries))
	binary.LittleEndian.PutUint32(head[16:], uint32(n))
	for i, p := range packs {
		number[p.id] = uint32(i)
		head = append(head, p.id[:]...)
		head = binary.LittleEndian.AppendUint64(head, uint64(p.size))
		head = binary.LittleEndian.AppendUint64(head, uint64(p.raw))
		head = binary.LittleEndian.AppendUint64(head, uint64(p.objects))
		if sealed {
			head = append(head, p.domain[:]...)
		}
	}
	sum := crc32.Update(crc32.Checksum(head[:segHeaderSize-4], castagnoli),
		castagnoli, head[segHeaderSize:])
	binary.LittleEndian.PutUint32(head[segHeaderSize-4:], sum)
	if _, err := w.Write(head); err != nil {
		return err
	}
	var b block
	flush := func() error {
		binary.LittleEndian.PutUint32(b.b[blockSize-8:], uint32(b.n))
		binary.LittleEndian.PutUint32(b.b[blockSize-4:],
			crc32.Checksum(b.b[:blockSize-4], castagnoli))
		_, err := w.Write(b.b[:])
		b = block{}
		return err
	}
	for p, err := range places {
		if err != nil {
			return err
		}
		e := b.b[b.n*segEntrySize:]
		copy(e, p.id[:])
		binary.LittleEndian.PutUint32(e[32:], number[p.pack])
		binary.LittleEndian.PutUint32(e[36:], p.off)
		binary.LittleEndian.PutUint32(e[40:], p.stored)
		binary.LittleEndian.PutUint32(e[44:], p.third())
		n--
		if b.n++; b.n == blockEntries {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if b.n > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	if n != 0 {
		return errors.New("the number of places differs from the announced number")
	}
	return nil
}
