package fsops

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func setXattr(d Dir, a []string) (string, error) {
	return "", unix.Lsetxattr(d.path(a[0]), a[1], []byte(a[2]), 0)
}

func removeXattr(d Dir, a []string) (string, error) {
	return "", unix.Lremovexattr(d.path(a[0]), a[1])
}

func getXattr(d Dir, a []string) (string, error) { return xattr(d.path(a[0]), a[1]) }

// xattr returns an extended attribute as a text.
func xattr(path, name string) (string, error) {
	b := make([]byte, 64<<10)
	n, err := unix.Lgetxattr(path, name, b)
	if err != nil {
		return "", err
	}
	b = b[:n]
	switch {
	case strings.HasPrefix(name, "system.posix_acl_"):
		return decodeACL(b), nil
	case strings.HasPrefix(name, "user."):
		return fmt.Sprintf("%q", b), nil
	}
	return hex.EncodeToString(b), nil
}

func listXattrs(d Dir, a []string) (string, error) {
	names, err := xattrNames(d.path(a[0]))
	return "[" + strings.Join(names, " ") + "]", err
}

// xattrNames returns the names of a file's attributes that a state keeps, sorted.
func xattrNames(path string) ([]string, error) {
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		return nil, err
	}
	names := strings.FieldsFunc(string(b[:n]), func(r rune) bool { return r == 0 })
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") &&
			name != "security.capability"
	})
	slices.Sort(names)
	return names, nil
}

// netRaw is the value of security.capability that gives cap_net_raw (linux/capability.h, version 2).
var netRaw = []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

func setCapability(d Dir, a []string) (string, error) {
	return "", unix.Lsetxattr(d.path(a[0]), "security.capability", netRaw, 0)
}

// An access control list as an attribute has is a version and entries (linux/posix_acl_xattr.h).
const (
	aclVersion = 2
	aclNoID    = 0xffffffff
)

var aclTags = []struct {
	tag    uint16
	name   string
	withID bool
}{{0x01, "u:", false}, {0x02, "u:", true}, {0x04, "g:", false}, {0x08, "g:", true}, {0x10, "m:", false},
	{0x20, "o:", false}}

// setACL sets an access control list: PATH access|default LIST, with a list such as
// "u::7,u:1000:4,g::0,m::4,o::0".
func setACL(d Dir, a []string) (string, error) {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for entry := range strings.SplitSeq(a[2], ",") {
		f := strings.Split(entry, ":")
		if len(f) != 3 {
			return "", errors.New("malformed entry " + entry)
		}
		perm, err := strconv.ParseUint(f[2], 8, 3)
		if err != nil {
			return "", err
		}
		id := uint64(aclNoID)
		if f[1] != "" {
			if id, err = strconv.ParseUint(f[1], 10, 32); err != nil {
				return "", err
			}
		}
		for _, t := range aclTags {
			if t.name == f[0]+":" && t.withID == (f[1] != "") {
				b = binary.LittleEndian.AppendUint16(b, t.tag)
				b = binary.LittleEndian.AppendUint16(b, uint16(perm))
				b = binary.LittleEndian.AppendUint32(b, uint32(id))
			}
		}
	}
	return "", unix.Lsetxattr(d.path(a[0]), "system.posix_acl_"+a[1], b, 0)
}

// decodeACL is the reverse of setACL.
func decodeACL(b []byte) string {
	if len(b) < 4 || (len(b)-4)%8 != 0 || binary.LittleEndian.Uint32(b) != aclVersion {
		return "malformed " + hex.EncodeToString(b)
	}
	var out []string
	for b = b[4:]; len(b) > 0; b = b[8:] {
		tag, perm, id := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])
		entry := fmt.Sprintf("%#x:", tag)
		for _, t := range aclTags {
			if t.tag == tag {
				entry = t.name
				if t.withID {
					entry += strconv.FormatUint(uint64(id), 10)
				}
			}
		}
		out = append(out, fmt.Sprintf("%s:%o", entry, perm))
	}
	return strings.Join(out, ",")
}
