package ext4

import (
	"bytes"
	"io"
	"sync"

	"turnstone.dev/turnstone/internal/store/tree"
)

// Bits of an inode's mode and flags (ext4.h).
const (
	modeType   = 0xf000
	modeFIFO   = 0x1000
	modeChar   = 0x2000
	modeDir    = 0x4000
	modeBlock  = 0x6000
	modeFile   = 0x8000
	modeLink   = 0xa000
	modeSocket = 0xc000

	flagEncrypted = 0x00000800
	flagExtents   = 0x00080000
	flagEAInode   = 0x00200000
	flagInline    = 0x10000000
	flagCasefold  = 0x40000000

	firstInode = 11 // smaller numbers, except the root, belong to the file system

	inlineTarget = 60   // shorter link targets are stored in the inode
	maxTarget    = 4095 // PATH_MAX without the NUL
)

// An Inode is a file. It is safe for concurrent use.
type Inode struct {
	fs    *FS
	ino   uint32
	mode  uint16
	links uint16
	flags uint32
	size  int64
	attr  tree.Attr // without Target and Xattrs
	block [60]byte  // i_block: an extent tree's root, block numbers, a target, a device
	acl   uint64    // block with extended attributes, or 0
	body  []byte    // extended attributes in the inode, from the first entry on
}

// Inode returns the file's number and its link count, which has no meaning for a directory.
func (n *Inode) Inode() (id uint64, names uint32) { return uint64(n.ino), uint32(n.links) }

// Attr returns the file's attributes. The type of a socket is 0 because trees have no sockets. The
// values of extended attributes are shared with other files: do not modify them.
func (n *Inode) Attr() (tree.Attr, error) {
	a := n.attr
	var err error
	if a.Type == tree.Symlink {
		if a.Target, err = n.target(); err != nil {
			return tree.Attr{}, err
		}
	}
	a.Xattrs, err = n.xattrs()
	return a, err
}

// inode reads an inode.
func (fs *FS) inode(ino uint32) (*Inode, error) {
	if ino > fs.inodes || ino < firstInode && ino != rootInode {
		return nil, corrupt("inode %d is referenced and the file system has only %d", ino,
			fs.inodes)
	}
	var buf [256]byte // Linux's size; larger inodes only have more space for attributes
	raw := buf[:]
	if fs.inodeSize > int64(len(buf)) {
		raw = make([]byte, fs.inodeSize)
	}
	raw = raw[:fs.inodeSize]
	table := fs.tables[(ino-1)/fs.inodesPerGroup]
	if err := fs.readMeta(raw,
		int64(table)*fs.blockSize+int64((ino-1)%fs.inodesPerGroup)*fs.inodeSize); err != nil {
		return nil, err
	}
	n := &Inode{fs: fs, ino: ino}
	if err := n.parse(raw); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Inode) parse(raw []byte) error {
	n.mode = le.Uint16(raw[0x00:])
	n.links = le.Uint16(raw[0x1a:])
	n.flags = le.Uint32(raw[0x20:])
	copy(n.block[:], raw[0x28:])
	n.acl = uint64(le.Uint32(raw[0x68:])) | uint64(le.Uint16(raw[0x76:]))<<32
	size := uint64(le.Uint32(raw[0x04:])) | uint64(le.Uint32(raw[0x6c:]))<<32
	n.attr.Mode = uint32(n.mode &^ modeType)
	n.attr.UID = uint32(le.Uint16(raw[0x02:])) | uint32(le.Uint16(raw[0x78:]))<<16
	n.attr.GID = uint32(le.Uint16(raw[0x18:])) | uint32(le.Uint16(raw[0x7a:]))<<16
	n.attr.MTime.Sec = int64(int32(le.Uint32(raw[0x10:])))
	switch {
	case n.links == 0:
		return corrupt("inode %d is referenced and free", n.ino)
	case n.flags&(flagEncrypted|flagEAInode|flagInline|flagCasefold) != 0:
		return unsupported("inode %d has flags %#x", n.ino, n.flags)
	case size > 1<<63-1:
		return corrupt("inode %d has a size of %d", n.ino, size)
	}
	n.size = int64(size)
	if err := n.parseExtra(raw); err != nil {
		return err
	}
	return n.parseType()
}

// parseExtra reads the data after the first 128 bytes: the rest of the times, and the offset of
// extended attributes.
func (n *Inode) parseExtra(raw []byte) error {
	const base = 128
	if len(raw) < base+4 {
		return nil
	}
	extra := int(le.Uint16(raw[base:]))
	if extra > len(raw)-base || extra%4 != 0 {
		return corrupt("inode %d has %d more bytes", n.ino, extra)
	}
	if extra >= 0x8c-base {
		// 30 bits of nanoseconds, and 2 bits that extend the 32 bits of the seconds.
		x := le.Uint32(raw[0x88:])
		n.attr.MTime.Sec += int64(x&3) << 32
		n.attr.MTime.Nsec = int32(x >> 2)
		if n.attr.MTime.Nsec >= 1e9 {
			return corrupt("inode %d has a time with %d nanoseconds", n.ino, n.attr.MTime.Nsec)
		}
	}
	if body := raw[base+extra:]; len(body) >= 8 && le.Uint32(body) == xattrMagic {
		n.body = bytes.Clone(body[4:])
	}
	return nil
}

func (n *Inode) parseType() error {
	switch n.mode & modeType {
	case modeDir:
		n.attr.Type = tree.Dir
		if n.size%n.fs.blockSize != 0 || n.size > 1<<32*n.fs.blockSize {
			return corrupt("directory %d has a size of %d", n.ino, n.size)
		}
	case modeFile:
		n.attr.Type = tree.File
		n.attr.Size = n.size
	case modeLink:
		n.attr.Type = tree.Symlink
		if n.size == 0 || n.size > maxTarget || n.size > n.fs.blockSize {
			return corrupt("link %d has a target of %d bytes", n.ino, n.size)
		}
	case modeChar:
		n.attr.Type = tree.Char
		n.device()
	case modeBlock:
		n.attr.Type = tree.Block
		n.device()
	case modeFIFO:
		n.attr.Type = tree.FIFO
	case modeSocket:
	default:
		return corrupt("inode %d has the mode %#o", n.ino, n.mode)
	}
	return nil
}

// device reads a device's number, which uses the old 16-bit form if possible.
func (n *Inode) device() {
	if v := le.Uint32(n.block[0:]); v != 0 {
		n.attr.Major, n.attr.Minor = v>>8&0xff, v&0xff
		return
	}
	v := le.Uint32(n.block[4:])
	n.attr.Major, n.attr.Minor = v>>8&0xfff, v&0xff|v>>12&0xfff00
}

func (n *Inode) target() (string, error) {
	b := make([]byte, n.size)
	if n.size < inlineTarget {
		copy(b, n.block[:])
	} else {
		m, err := n.mapping()
		if err != nil {
			return "", err
		}
		f := File{fs: n.fs, extents: m.extents, size: n.size}
		if _, err := io.ReadFull(&f, b); err != nil {
			return "", err
		}
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return "", corrupt("link %d has a target with a NUL byte", n.ino)
	}
	return string(b), nil
}

// metaCache caches pieces of the inode tables. Each piece has a fixed slot, so the size of the
// cache is fixed.
type metaCache struct {
	slots [64]struct {
		mu    sync.Mutex
		piece int64 // the piece's number plus 1
		data  []byte
	}
}

const pieceSize = 64 << 10 // a multiple of every block size, so that no inode spans two pieces

// readMeta reads b from the image through the cache. b must be inside a block.
func (fs *FS) readMeta(b []byte, off int64) error {
	piece := off / pieceSize
	s := &fs.cache.slots[piece%int64(len(fs.cache.slots))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.piece != piece+1 {
		s.piece = 0
		s.data = append(s.data[:0],
			make([]byte, min(pieceSize, int64(fs.blocks)*fs.blockSize-piece*pieceSize))...)
		if err := readFull(fs.r, s.data, piece*pieceSize); err != nil {
			return err
		}
		s.piece = piece + 1
	}
	copy(b, s.data[off-piece*pieceSize:])
	return nil
}
