package ext4

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"turnstone.dev/turnstone/internal/store/tree"
)

var le = binary.LittleEndian

const (
	superOffset = 1024
	superSize   = 1024
	superMagic  = 0xef53
	rootInode   = 2
)

// Relevant features (ext4.h).
const (
	incompatFiletype = 0x0002
	incompatRecover  = 0x0004
	incompatExtents  = 0x0040
	incompat64bit    = 0x0080
	incompatFlexBG   = 0x0200
	incompatCsumSeed = 0x2000
	incompatLargeDir = 0x4000

	incompatKnown = incompatFiletype | incompatExtents | incompat64bit | incompatFlexBG | incompatCsumSeed | incompatLargeDir

	roCompatBigalloc     = 0x0200
	roCompatSharedBlocks = 0x4000
)

// An FS is an open file system.
type FS struct {
	r    io.ReaderAt
	opts Options

	blockSize      int64
	blocks         uint64 // number of blocks
	firstBlock     uint64
	inodes         uint32 // number of inodes
	inodesPerGroup uint32
	inodeSize      int64
	filetype       bool

	tables []uint64 // first block of each group's inode table
	meta   []span   // blocks that no file may claim, sorted, without overlaps

	cache   metaCache
	claimed claims // blocks that belong to a file
	mapped  claims // inodes whose blocks were claimed
	listed  claims // directories whose children were read
	named   claims // inodes with a single name that were found

	holes   atomic.Int64 // bytes of holes so far
	entries atomic.Int64 // directory entries so far

	mu     sync.Mutex
	dirs   map[uint32]dirName // the location of each directory
	xblock map[uint64][]tree.Xattr
}

// A dirName is the only name of a directory.
type dirName struct {
	parent uint32
	name   string
}

// A span is blocks from start to before end.
type span struct{ start, end uint64 }

// OpenOptions is Open with the caller's bounds.
func OpenOptions(r io.ReaderAt, size int64, opts Options) (*FS, error) {
	if opts.Holes == 0 {
		opts.Holes = defaultHoles
	}
	if opts.Entries == 0 {
		opts.Entries = defaultEntries
	}
	sb := make([]byte, superSize)
	if size < superOffset+superSize {
		return nil, corrupt("the disk is too small for a file system")
	}
	if err := readFull(r, sb, superOffset); err != nil {
		return nil, err
	}
	fs := &FS{r: r, opts: opts, dirs: map[uint32]dirName{}, xblock: map[uint64][]tree.Xattr{}}
	if err := fs.features(sb); err != nil {
		return nil, err
	}
	descSize, groups, err := fs.geometry(sb, size)
	if err != nil {
		return nil, err
	}
	if err := fs.groups(sb, descSize, groups); err != nil {
		return nil, err
	}
	fs.claimed.limit = fs.blocks
	for _, c := range []*claims{&fs.mapped, &fs.listed, &fs.named} {
		c.limit = uint64(fs.inodes) + 1
	}
	return fs, nil
}

func (fs *FS) features(sb []byte) error {
	if le.Uint16(sb[0x38:]) != superMagic {
		return corrupt("there is no ext4 file system")
	}
	if rev := le.Uint32(sb[0x4c:]); rev != 1 {
		return unsupported("revision %d of the format", rev)
	}
	incompat, roCompat := le.Uint32(sb[0x60:]), le.Uint32(sb[0x64:])
	switch {
	case incompat&incompatRecover != 0:
		return unsupported("%w", ErrJournal)
	case incompat&^incompatKnown != 0:
		return unsupported("incompatible features %#x", incompat&^incompatKnown)
	case roCompat&(roCompatBigalloc|roCompatSharedBlocks) != 0:
		return unsupported("features %#x", roCompat&(roCompatBigalloc|roCompatSharedBlocks))
	}
	fs.filetype = incompat&incompatFiletype != 0
	return nil
}

// geometry reads sizes, and returns the size of a group descriptor and the number of groups.
func (fs *FS) geometry(sb []byte, size int64) (descSize int64, groups uint64, err error) {
	logSize := le.Uint32(sb[0x18:])
	if logSize > 6 || le.Uint32(sb[0x1c:]) != logSize {
		return 0, 0, corrupt("block size of 2^%d KiB", logSize)
	}
	fs.blockSize = 1024 << logSize
	fs.blocks = uint64(le.Uint32(sb[0x04:]))
	descSize = 32
	if le.Uint32(sb[0x60:])&incompat64bit != 0 {
		fs.blocks |= uint64(le.Uint32(sb[0x150:])) << 32
		if descSize = int64(le.Uint16(sb[0xfe:])); descSize < 64 || descSize > fs.blockSize ||
			descSize&(descSize-1) != 0 {
			return 0, 0, corrupt("group descriptors of %d bytes", descSize)
		}
	}
	fs.firstBlock = uint64(le.Uint32(sb[0x14:]))
	fs.inodes = le.Uint32(sb[0x00:])
	fs.inodesPerGroup = le.Uint32(sb[0x28:])
	fs.inodeSize = int64(le.Uint16(sb[0x58:]))
	perGroup := uint64(le.Uint32(sb[0x20:]))
	bits := uint64(8 * fs.blockSize) // a bitmap has a single block
	switch {
	case fs.blocks > uint64(size/fs.blockSize):
		return 0, 0, corrupt("%d blocks of %d bytes do not fit into %d bytes",
			fs.blocks, fs.blockSize, size)
	case fs.firstBlock > 1 || fs.firstBlock >= fs.blocks ||
		(fs.blockSize == 1024) != (fs.firstBlock == 1):
		return 0, 0, corrupt("its first block is %d of %d", fs.firstBlock, fs.blocks)
	case perGroup == 0 || perGroup > bits || fs.inodesPerGroup == 0 ||
		uint64(fs.inodesPerGroup) > bits:
		return 0, 0, corrupt("groups of %d blocks and %d inodes", perGroup, fs.inodesPerGroup)
	case fs.inodeSize < 128 || fs.inodeSize > fs.blockSize || fs.inodeSize&(fs.inodeSize-1) != 0:
		return 0, 0, corrupt("inodes of %d bytes", fs.inodeSize)
	}
	groups = (fs.blocks - fs.firstBlock + perGroup - 1) / perGroup
	if fs.inodes < 11 || uint64(fs.inodes) > groups*uint64(fs.inodesPerGroup) {
		return 0, 0, corrupt("%d inodes in %d groups", fs.inodes, groups)
	}
	return descSize, groups, nil
}

// groups reads the group descriptors: the locations of the inode tables. A table that was never
// written needs no special treatment because its inodes have no links.
func (fs *FS) groups(sb []byte, descSize int64, groups uint64) error {
	start := fs.firstBlock + 1
	length := (groups*uint64(descSize) + uint64(fs.blockSize) - 1) / uint64(fs.blockSize)
	if length > fs.blocks-start {
		return corrupt("descriptors of %d groups do not fit", groups)
	}
	fs.meta = append(fs.meta, span{0, start + length})
	perTable := (uint64(fs.inodesPerGroup)*uint64(fs.inodeSize) +
		uint64(fs.blockSize) - 1) / uint64(fs.blockSize)
	b := make([]byte, groups*uint64(descSize))
	if err := readFull(fs.r, b, int64(start)*fs.blockSize); err != nil {
		return err
	}
	need := (uint64(fs.inodes) + uint64(fs.inodesPerGroup) - 1) / uint64(fs.inodesPerGroup)
	for g := range groups {
		d := b[g*uint64(descSize):][:descSize]
		block := func(lo, hi int) uint64 {
			n := uint64(le.Uint32(d[lo:]))
			if descSize >= 64 {
				n |= uint64(le.Uint32(d[hi:])) << 32
			}
			return n
		}
		table := block(0x08, 0x28)
		if g < need && (table < start+length || table > fs.blocks || perTable > fs.blocks-table) {
			return corrupt("the inode table of group %d is at block %d", g, table)
		}
		fs.tables = append(fs.tables, table)
		for _, s := range []span{{block(0, 0x20), 1}, {block(4, 0x24), 1}, {table, perTable}} {
			if s.start < fs.blocks && s.end <= fs.blocks-s.start {
				fs.meta = append(fs.meta, span{s.start, s.start + s.end})
			}
		}
	}
	fs.meta = mergeSpans(fs.meta)
	return nil
}

// mergeSpans sorts spans and joins adjacent spans.
func mergeSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s.start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, s.end)
			continue
		}
		out = append(out, s)
	}
	return out
}

// isMeta reports whether any of the n blocks from start on belongs to the file system itself.
func (fs *FS) isMeta(start, n uint64) bool {
	i, _ := slices.BinarySearchFunc(fs.meta, start, func(s span, start uint64) int {
		if s.end <= start {
			return -1
		}
		return 1
	})
	return i < len(fs.meta) && fs.meta[i].start < start+n
}

// claim assigns the blocks to a file, which must be their only owner.
func (fs *FS) claim(ino uint32, start, n uint64) error {
	switch {
	case start >= fs.blocks || n > fs.blocks-start:
		return corrupt("inode %d has blocks %d+%d of %d", ino, start, n, fs.blocks)
	case fs.isMeta(start, n):
		return corrupt("inode %d has blocks %d+%d, which belong to the file system itself", ino,
			start, n)
	case !fs.claimed.take(start, n):
		return corrupt("inode %d has blocks %d+%d, which another file has too", ino, start, n)
	}
	return nil
}

// readFull reads all of b. Missing data at the end of the image is an error.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
