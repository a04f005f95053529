package ext4

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/store/tree"
)

const (
	xattrMagic = 0xea020000
	xattrHead  = 32 // bytes of a block's header
	xattrEntry = 16 // bytes of an entry without its name

	maxXattrBlocks = 4096 // cached in memory
)

// Numbers of the names' prefixes (fs/ext4/xattr.h). Linux shows no others.
const (
	aclAccess  = 2
	aclDefault = 3
)

var xattrPrefixes = [...]string{1: "user.", aclAccess: "system.posix_acl_access",
	aclDefault: "system.posix_acl_default", 4: "trusted.", 6: "security."}

// xattrs returns all extended attributes, sorted by name: those in the inode, and those in a block
// that files can share.
func (n *Inode) xattrs() ([]tree.Xattr, error) {
	if n.body == nil && n.acl == 0 {
		return nil, nil
	}
	var out []tree.Xattr
	if n.body != nil {
		var err error
		if out, err = n.parseXattrs(n.body, n.body); err != nil {
			return nil, err
		}
	}
	if n.acl != 0 {
		more, err := n.xattrBlock()
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	slices.SortFunc(out, func(a, b tree.Xattr) int { return strings.Compare(a.Name, b.Name) })
	for i := range out {
		if i > 0 && out[i].Name == out[i-1].Name {
			return nil, corrupt("inode %d has the attribute %q twice", n.ino, out[i].Name)
		}
	}
	return out, nil
}

func (n *Inode) xattrBlock() ([]tree.Xattr, error) {
	fs := n.fs
	fs.mu.Lock()
	out, ok := fs.xblock[n.acl]
	fs.mu.Unlock()
	if ok {
		return out, nil
	}
	if n.acl >= fs.blocks {
		return nil, corrupt("inode %d has attributes in block %d of %d", n.ino, n.acl, fs.blocks)
	}
	b := make([]byte, fs.blockSize)
	if err := readFull(fs.r, b, int64(n.acl)*fs.blockSize); err != nil {
		return nil, fmt.Errorf("attributes of inode %d: %w", n.ino, err)
	}
	if le.Uint32(b) != xattrMagic || le.Uint32(b[8:]) != 1 {
		return nil, corrupt("inode %d has attributes in block %d, which has other content", n.ino,
			n.acl)
	}
	out, err := n.parseXattrs(b[xattrHead:], b)
	if err != nil {
		return nil, err
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.xblock) >= maxXattrBlocks {
		clear(fs.xblock)
	}
	fs.xblock[n.acl] = out
	return out, nil
}

// parseXattrs parses entries, whose values are at offsets in values.
func (n *Inode) parseXattrs(entries, values []byte) (out []tree.Xattr, err error) {
	damaged := func() error { return corrupt("inode %d has damaged extended attributes", n.ino) }
	for b := entries; ; {
		if len(b) < 4 {
			return nil, damaged()
		}
		if le.Uint32(b) == 0 {
			return out, nil
		}
		if len(b) < xattrEntry || len(b) < xattrEntry+int(b[0]) {
			return nil, damaged()
		}
		length, index := int(b[0]), int(b[1])
		off, inode, size := int(le.Uint16(b[2:])), le.Uint32(b[4:]), le.Uint32(b[8:])
		name := b[xattrEntry : xattrEntry+length]
		switch {
		case inode != 0:
			return nil, unsupported("inode %d has an extended attribute in another inode", n.ino)
		case bytes.IndexByte(name, 0) >= 0 ||
			uint64(size) > uint64(len(values)), off > len(values)-int(size):
			return nil, damaged()
		}
		b = b[min(len(b), (xattrEntry+length+3)&^3):]
		if index >= len(xattrPrefixes) || xattrPrefixes[index] == "" {
			continue
		}
		x := tree.Xattr{Name: xattrPrefixes[index] + string(name),
			Value: bytes.Clone(values[off : off+int(size)])}
		acl := index == aclAccess || index == aclDefault
		if len(x.Name) > 255 || acl != (length == 0) {
			return nil, damaged()
		}
		if acl {
			if x.Value, err = posixACL(x.Value); err != nil {
				return nil, fmt.Errorf("inode %d: %w", n.ino, err)
			}
		}
		out = append(out, x)
	}
}

// posixACL converts an access control list from the disk format (fs/ext4/acl.h) to the format of
// getxattr(2) (linux/posix_acl_xattr.h).
func posixACL(disk []byte) ([]byte, error) {
	const (
		userObj, groupObj, mask, other = 0x01, 0x04, 0x10, 0x20
		user, group                    = 0x02, 0x08
		noID                           = 0xffffffff
	)
	damaged := corrupt("damaged access control list")
	if len(disk) < 4 || le.Uint32(disk) != 1 {
		return nil, damaged
	}
	out := binary.LittleEndian.AppendUint32(nil, 2)
	for b := disk[4:]; len(b) > 0; {
		if len(b) < 4 {
			return nil, damaged
		}
		out = append(out, b[:4]...)
		switch le.Uint16(b) {
		case userObj, groupObj, mask, other:
			out = binary.LittleEndian.AppendUint32(out, noID)
			b = b[4:]
		case user, group:
			if len(b) < 8 {
				return nil, damaged
			}
			out = append(out, b[4:8]...)
			b = b[8:]
		default:
			return nil, damaged
		}
	}
	return out, nil
}
