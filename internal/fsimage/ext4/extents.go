package ext4

import "fmt"

// An extent is a sequence of blocks of a file that is contiguous on the disk.
type extent struct {
	logical uint64 // first block in the file
	length  uint64 // in blocks
	start   uint64 // first block on the disk; 0 if allocated and never written
}

const (
	extentMagic = 0xf30a
	extentEntry = 12 // bytes of a header and of an entry
	maxDepth    = 5  // of an extent tree (ext4_extents.h)
	maxWritten  = 1 << 15
	// The table of a file with more extents would use too much memory.
	maxExtents = 4 << 20
)

// A mapping is the location of a file's blocks.
type mapping struct {
	extents []extent
	first   bool // the first request for the mapping
}

// mapping returns the location of the file's blocks, in order. The first call claims them and the
// blocks of the map itself.
func (n *Inode) mapping() (mapping, error) {
	m := mapper{n: n, first: n.fs.mapped.take(uint64(n.ino), 1)}
	var err error
	if n.flags&flagExtents != 0 {
		err = m.node(n.block[:], maxDepth+1)
	} else {
		err = m.blockMap()
	}
	if err != nil {
		return mapping{}, err
	}
	return mapping{extents: m.extents, first: m.first}, nil
}

type mapper struct {
	n       *Inode
	first   bool
	extents []extent
	next    uint64 // the next extent must not begin before this block of the file
}

// add adds n blocks from start on as the blocks of the file from logical on.
func (m *mapper) add(logical, start, n uint64, written bool) error {
	fs := m.n.fs
	if logical < m.next || n == 0 {
		return corrupt("inode %d has overlapping extents", m.n.ino)
	}
	m.next = logical + n
	if m.first {
		if err := fs.claim(m.n.ino, start, n); err != nil {
			return err
		}
	} else if start == 0 || start >= fs.blocks || n > fs.blocks-start {
		return corrupt("inode %d has blocks %d+%d of %d", m.n.ino, start, n, fs.blocks)
	}
	if !written {
		start = 0
	}
	if k := len(m.extents) - 1; k >= 0 {
		last := &m.extents[k]
		if last.logical+last.length == logical &&
			(start == 0 && last.start == 0 || start != 0 && last.start != 0 &&
				last.start+last.length == start) {
			last.length += n
			return nil
		}
	}
	if len(m.extents) >= maxExtents {
		return exhausted("copy the file to a new file with fewer extents and remove the old file",
			"inode %d has more than %d extents", m.n.ino, maxExtents)
	}
	m.extents = append(m.extents, extent{logical, n, start})
	return nil
}

// node reads a node of an extent tree with a depth below limit.
func (m *mapper) node(b []byte, limit int) error {
	entries, depth := int(le.Uint16(b[2:])), int(le.Uint16(b[6:]))
	if le.Uint16(b) != extentMagic || extentEntry*(entries+1) > len(b) || depth >= limit {
		return corrupt("inode %d has a damaged extent tree", m.n.ino)
	}
	if root := len(b) == len(m.n.block); !root && (entries == 0 || depth != limit-1) {
		return corrupt("inode %d has a damaged extent tree", m.n.ino)
	}
	for i := range entries {
		e := b[extentEntry*(i+1):][:extentEntry]
		if depth > 0 {
			child, err := m.read(uint64(le.Uint32(e[4:])) | uint64(le.Uint16(e[8:]))<<32)
			if err != nil {
				return err
			}
			if err := m.node(child, depth); err != nil {
				return err
			}
			continue
		}
		length := uint64(le.Uint16(e[4:]))
		written := length <= maxWritten
		if !written {
			length -= maxWritten
		}
		if err := m.add(uint64(le.Uint32(e)), uint64(le.Uint16(e[6:]))<<32|uint64(le.Uint32(e[8:])),
			length, written); err != nil {
			return err
		}
	}
	return nil
}

// read reads a block of the map.
func (m *mapper) read(block uint64) ([]byte, error) {
	fs := m.n.fs
	if m.first {
		if err := fs.claim(m.n.ino, block, 1); err != nil {
			return nil, err
		}
	} else if block >= fs.blocks {
		return nil, corrupt("inode %d has the block %d of %d", m.n.ino, block, fs.blocks)
	}
	b := make([]byte, fs.blockSize)
	if err := readFull(fs.r, b, int64(block)*fs.blockSize); err != nil {
		return nil, fmt.Errorf("the map of inode %d: %w", m.n.ino, err)
	}
	return b, nil
}

// blockMap reads the older map format: 12 blocks, then a block of block numbers, and blocks of two
// and three levels of indirection.
func (m *mapper) blockMap() error {
	for i := range 15 {
		block := uint64(le.Uint32(m.n.block[4*i:]))
		logical, depth := uint64(i), 0
		per := uint64(m.n.fs.blockSize / 4)
		switch i {
		case 12:
			depth = 1
		case 13:
			logical, depth = 12+per, 2
		case 14:
			logical, depth = 12+per+per*per, 3
		}
		if err := m.pointer(block, logical, depth); err != nil {
			return err
		}
	}
	return nil
}

func (m *mapper) pointer(block, logical uint64, depth int) error {
	if block == 0 {
		return nil
	}
	if depth == 0 {
		return m.add(logical, block, 1, true)
	}
	b, err := m.read(block)
	if err != nil {
		return err
	}
	per := uint64(m.n.fs.blockSize / 4)
	step := uint64(1)
	for range depth - 1 {
		step *= per
	}
	for i := range per {
		if err := m.pointer(uint64(le.Uint32(b[4*i:])), logical+i*step, depth-1); err != nil {
			return err
		}
	}
	return nil
}
