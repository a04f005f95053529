package tar2erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The library writes an inode for each name. In EROFS a hard link is a directory entry with the
// inode number (nid) of another entry, so it remains to look up the names and to write that number.
// Offsets are those of fs/erofs/erofs_fs.h (Linux 6.1), for the two layouts that the library uses
// for folders: plain blocks, and inline after the inode.
const (
	superOffset     = 1024
	superMagic      = 0xe0f5e1e2
	superBlockBits  = 12 // u8
	superRoot       = 14 // u16: the root's nid
	superInodes     = 16 // u64
	superMetaBlock  = 40 // u32: location of nid 0
	superUUID       = 48 // 16 bytes
	inodeSlot       = 32 // bytes per nid
	inodeXattrCount = 2  // u16
	inodeMode       = 4  // u16
	inodeSize       = 8  // u32, or u64 in an extended inode
	inodeData       = 16 // u32: the first block of a plain layout
	direntSize      = 12 // u64 nid, u16 name offset, u8 type, u8 reserved
	layoutPlain     = 0
	layoutInline    = 2
)

// An image is the folders of an EROFS image.
type image struct {
	f interface {
		io.ReaderAt
		io.WriterAt
	}
	blockSize int64
	meta      int64 // offset of nid 0
	root      uint64
	inodes    uint64
}

// A slot is the location of a name.
type slot struct {
	offset int64 // of the directory entry in the image
	nid    uint64
}

// A Link is another name of a file together with an earlier name; both without a leading slash.
type Link struct{ Name, Target string }

// JoinLinks points each link's name in the EROFS image f at its target's inode. Under the name, the
// image must contain an empty file of the same type; the target must have the correct link count.
func JoinLinks(f interface {
	io.ReaderAt
	io.WriterAt
}, links []Link) error {
	if len(links) == 0 {
		return nil
	}
	img, err := openImage(f)
	if err != nil {
		return err
	}
	dirs := map[string]map[string]slot{}
	for _, link := range links {
		from, err := img.find(dirs, link.Name)
		if err != nil {
			return err
		}
		to, err := img.find(dirs, link.Target)
		if err != nil {
			return err
		}
		var nid [8]byte
		binary.LittleEndian.PutUint64(nid[:], to.nid)
		if _, err := f.WriteAt(nid[:], from.offset); err != nil {
			return err
		}
	}
	// The inodes without a name are no longer files.
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], img.inodes-uint64(len(links)))
	_, err = f.WriteAt(n[:], superOffset+superInodes)
	return err
}

// SetUUID gives the EROFS image f a UUID. The library writes none.
func SetUUID(f io.WriterAt, id [16]byte) error {
	_, err := f.WriteAt(id[:], superOffset+superUUID)
	return err
}

func openImage(f interface {
	io.ReaderAt
	io.WriterAt
}) (*image, error) {
	var sb [128]byte
	if _, err := f.ReadAt(sb[:], superOffset); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(sb[:]) != superMagic ||
		sb[superBlockBits] < 9 || sb[superBlockBits] > 16 {
		return nil, errors.New("no superblock")
	}
	size := int64(1) << sb[superBlockBits]
	return &image{
		f:         f,
		blockSize: size,
		meta:      int64(binary.LittleEndian.Uint32(sb[superMetaBlock:])) * size,
		root:      uint64(binary.LittleEndian.Uint16(sb[superRoot:])),
		inodes:    binary.LittleEndian.Uint64(sb[superInodes:]),
	}, nil
}

// find looks path up. dirs caches the folders.
func (img *image) find(dirs map[string]map[string]slot, path string) (slot, error) {
	at := slot{nid: img.root}
	for i := 0; i <= len(path); {
		names := dirs[path[:max(i-1, 0)]]
		if names == nil {
			var err error
			if names, err = img.readDir(at.nid); err != nil {
				return slot{}, fmt.Errorf("folder %q: %w", path[:max(i-1, 0)], err)
			}
			dirs[path[:max(i-1, 0)]] = names
		}
		name, _, _ := strings.Cut(path[i:], "/")
		var ok bool
		if at, ok = names[name]; !ok {
			return slot{}, fmt.Errorf("%q is not in the image", path)
		}
		i += len(name) + 1
	}
	return at, nil
}

// readDir returns the entries of the folder with the given nid.
func (img *image) readDir(nid uint64) (map[string]slot, error) {
	offset, size, err := img.dirData(nid)
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	if _, err := img.f.ReadAt(data, offset); err != nil {
		return nil, err
	}
	names := map[string]slot{}
	for block := int64(0); block < size; block += img.blockSize {
		b := data[block:min(block+img.blockSize, size)]
		if len(b) < direntSize {
			return nil, errors.New("a block without entries")
		}
		first := int(binary.LittleEndian.Uint16(b[8:]))
		for at := 0; at < first; at += direntSize {
			if first > len(b) || at+direntSize > first {
				return nil, errors.New("an entry outside of its block")
			}
			start, end := int(binary.LittleEndian.Uint16(b[at+8:])), len(b)
			if at+direntSize < first {
				end = int(binary.LittleEndian.Uint16(b[at+direntSize+8:]))
			}
			if start < first || start > end || end > len(b) {
				return nil, errors.New("a name outside of its block")
			}
			name := b[start:end]
			if i := bytes.IndexByte(name, 0); i >= 0 { // the last name of a block is padded
				name = name[:i]
			}
			names[string(name)] = slot{offset: offset + block + int64(at),
				nid: binary.LittleEndian.Uint64(b[at:])}
		}
	}
	return names, nil
}

// dirData returns the location of a folder's entries.
func (img *image) dirData(nid uint64) (offset, size int64, err error) {
	if nid > 1<<40 {
		return 0, 0, errors.New("inode out of range")
	}
	at := img.meta + int64(nid)*inodeSlot
	var ino [64]byte
	if n, err := img.f.ReadAt(ino[:], at); n < 32 {
		return 0, 0, err
	}
	format := binary.LittleEndian.Uint16(ino[:])
	header := int64(32)
	size = int64(binary.LittleEndian.Uint32(ino[inodeSize:]))
	if format&1 != 0 { // an extended inode
		header = 64
		size = int64(binary.LittleEndian.Uint64(ino[inodeSize:]))
	}
	if binary.LittleEndian.Uint16(ino[inodeMode:])&typeMask != typeDir || size < 0 || size > 1<<30 {
		return 0, 0, errors.New("is not a folder")
	}
	if n := int64(binary.LittleEndian.Uint16(ino[inodeXattrCount:])); n > 0 {
		header += 12 + (n-1)*4
	}
	switch layout := format >> 1 & 7; layout {
	case layoutPlain:
		return int64(binary.LittleEndian.Uint32(ino[inodeData:])) * img.blockSize, size, nil
	case layoutInline:
		return at + header, size, nil
	default:
		return 0, 0, fmt.Errorf("unknown layout %d", layout)
	}
}
