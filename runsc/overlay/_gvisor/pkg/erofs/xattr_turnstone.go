// Extended attributes of EROFS, read only. This file is added to gVisor's package by
// Turnstone's build; the format is that of
// https://docs.kernel.org/filesystems/erofs.html and Linux, fs/erofs/erofs_fs.h.

package erofs

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
)

const (
	xattrHeaderSize = 12 // u32 name filter, u8 count of shared ones, 7 bytes reserved
	xattrEntrySize  = 4  // u8 length of the name, u8 index of its prefix, u16 size of the value
	xattrAlign      = 4
)

// xattrAreaSize returns how many bytes of attributes follow an inode whose
// i_xattr_icount is count.
func xattrAreaSize(count uint16) uint64 {
	if count == 0 {
		return 0
	}
	return xattrHeaderSize + uint64(count-1)*xattrEntrySize
}

// xattrName returns the name of the attribute that is called text behind the prefix with
// the given index. What this format does not know is left out. The name of an access
// control list is an index alone; its value is that of getxattr(2).
func xattrName(index uint8, text []byte) (name string, ok bool) {
	switch {
	case index == 1:
		return "user." + string(text), true
	case index == 2 && len(text) == 0:
		return "system.posix_acl_access", true
	case index == 3 && len(text) == 0:
		return "system.posix_acl_default", true
	case index == 4:
		return "trusted." + string(text), true
	case index == 6:
		return "security." + string(text), true
	}
	return "", false
}

// Xattrs calls f with the name and the value of each extended attribute until it
// returns false. The value is part of the image: it must be copied to be kept.
func (i *Inode) Xattrs(f func(name string, value []byte) bool) error {
	area, err := i.xattrArea()
	if err != nil || area == nil {
		return err
	}
	shared := area[xattrHeaderSize:]
	for range int(area[4]) {
		if len(shared) < 4 {
			return linuxerr.EUCLEAN
		}
		off := i.image.sb.BlockAddrToOffset(i.image.sb.XattrBlockAddr) + 4*uint64(binary.LittleEndian.Uint32(shared))
		shared = shared[4:]
		entry, err := i.sharedXattr(off)
		if err != nil {
			return err
		}
		if _, more, err := nextXattr(entry, f); err != nil || !more {
			return err
		}
	}
	for rest := shared; len(rest) >= xattrEntrySize; {
		n, more, err := nextXattr(rest, f)
		if err != nil || !more {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// xattrArea returns the attributes that follow the inode, with their header; nil when
// there are none.
func (i *Inode) xattrArea() ([]byte, error) {
	off := i.image.sb.NidToOffset(i.nid)
	var count uint16
	size := uint64(InodeCompactSize)
	if i.Layout() == InodeLayoutCompact {
		ino, err := i.image.inodeCompactAt(off)
		if err != nil {
			return nil, err
		}
		count = ino.XattrCount
	} else {
		ino, err := i.image.inodeExtendedAt(off)
		if err != nil {
			return nil, err
		}
		count, size = ino.XattrCount, InodeExtendedSize
	}
	if count == 0 {
		return nil, nil
	}
	return i.image.BytesAt(off+size, xattrAreaSize(count))
}

// sharedXattr returns the entry at off, which stands outside of any inode.
func (i *Inode) sharedXattr(off uint64) ([]byte, error) {
	head, err := i.image.BytesAt(off, xattrEntrySize)
	if err != nil {
		return nil, err
	}
	size := xattrEntrySize + uint64(head[0]) + uint64(binary.LittleEndian.Uint16(head[2:]))
	return i.image.BytesAt(off, size)
}

// nextXattr calls f with the entry that b begins with, and returns the entry's size
// with what is between it and the next one, at most len(b).
func nextXattr(b []byte, f func(name string, value []byte) bool) (n int, more bool, err error) {
	name, value := int(b[0]), int(binary.LittleEndian.Uint16(b[2:]))
	end := xattrEntrySize + name + value
	if end > len(b) {
		return 0, false, linuxerr.EUCLEAN
	}
	n = min((end+xattrAlign-1)/xattrAlign*xattrAlign, len(b))
	full, ok := xattrName(b[1], b[xattrEntrySize:xattrEntrySize+name])
	if !ok {
		return n, true, nil
	}
	return n, f(full, b[xattrEntrySize+name:end]), nil
}

// Rdev returns the device number of an inode of a device, as Linux's
// new_decode_dev() takes it apart.
func (i *Inode) Rdev() (major, minor uint32) {
	if !i.IsCharDev() && !i.IsBlockDev() {
		return 0, 0
	}
	dev := uint32(i.dataOff >> i.image.sb.BlockSizeBits)
	return dev & 0xfff00 >> 8, dev&0xff | dev>>12&0xfff00
}

// BrokenImage is an image whose every directory is empty, in the place of one that
// could not be opened. It takes over nothing: the file stays the caller's.
func BrokenImage() *Image {
	return &Image{sb: SuperBlock{BlockSizeBits: 12}}
}

// BrokenRoot is the root directory of a BrokenImage.
func (i *Image) BrokenRoot() Inode {
	const directory = 0o040555
	return Inode{image: i, mode: directory, nlink: 2}
}
