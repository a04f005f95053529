package erofs

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// image returns an image with one inode, the root at nid 0, whose attributes are area; and
// the shared attributes behind the metadata.
func testImage(extended bool, count uint16, area, shared []byte) []byte {
	b := make([]byte, 3*4096)
	sb := b[SuperBlockOffset:]
	binary.LittleEndian.PutUint32(sb, SuperBlockMagicV1)
	sb[12] = 12                               // block size
	binary.LittleEndian.PutUint32(sb[40:], 1) // metadata
	binary.LittleEndian.PutUint32(sb[44:], 2) // shared attributes
	ino := b[4096:]
	size := InodeCompactSize
	if extended {
		ino[0], size = InodeLayoutExtended, InodeExtendedSize
	}
	binary.LittleEndian.PutUint16(ino[2:], count)
	binary.LittleEndian.PutUint16(ino[4:], 0o100644)
	copy(ino[size:], area)
	copy(b[2*4096:], shared)
	return b
}

func entry(index byte, name, value string) []byte {
	b := append([]byte{byte(len(name)), index, byte(len(value)), byte(len(value) >> 8)}, name+value...)
	for len(b)%xattrAlign != 0 {
		b = append(b, 0)
	}
	return b
}

// area returns the attributes of an inode and what i_xattr_icount says of them.
func area(shared []uint32, entries ...[]byte) ([]byte, uint16) {
	b := make([]byte, xattrHeaderSize)
	b[4] = byte(len(shared))
	for _, id := range shared {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	for _, e := range entries {
		b = append(b, e...)
	}
	return b, uint16((len(b)-xattrHeaderSize)/xattrEntrySize) + 1
}

// read returns the attributes of the image's root.
func read(t testing.TB, image []byte) (map[string]string, error) {
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	i, err := OpenImage(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer i.Close()
	ino, err := i.Inode(i.RootNid())
	if err != nil {
		return nil, err
	}
	got := map[string]string{}
	err = ino.Xattrs(func(name string, value []byte) bool {
		got[name] = string(value)
		return true
	})
	return got, err
}

func TestTurnstoneXattrs(t *testing.T) {
	inline := [][]byte{entry(1, "a", "one"), entry(6, "capability", "\x01\x00\x00\x02"), entry(2, "", "an ACL"), entry(3, "", "another"), entry(2, "x", "unknown"), entry(4, "overlay.opaque", "y"), entry(9, "x", "unknown")}
	want := map[string]string{"user.a": "one", "system.posix_acl_access": "an ACL", "system.posix_acl_default": "another", "security.capability": "\x01\x00\x00\x02", "trusted.overlay.opaque": "y"}
	for _, extended := range []bool{false, true} {
		b, count := area(nil, inline...)
		got, err := read(t, testImage(extended, count, b, nil))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("extended %t: %q, %v", extended, got, err)
		}
	}
	shared := append(entry(1, "far", "away"), entry(1, "further", "")...)
	b, count := area([]uint32{uint32(len(entry(1, "far", "away")) / 4), 0}, inline[0])
	got, err := read(t, testImage(false, count, b, shared))
	if err != nil || fmt.Sprint(got) != fmt.Sprint(map[string]string{"user.a": "one", "user.far": "away", "user.further": ""}) {
		t.Errorf("shared: %q, %v", got, err)
	}
	if got, err := read(t, testImage(false, 0, nil, nil)); err != nil || len(got) != 0 {
		t.Errorf("none: %q, %v", got, err)
	}
}

// TestTurnstoneXattrsHostile: what does not fit is an error, not a crash.
func TestTurnstoneXattrsHostile(t *testing.T) {
	good, count := area(nil, entry(1, "a", "one"))
	long := entry(1, "a", "one")
	long[2] = 200 // of a value that is not there
	cut, cutCount := area(nil, long)
	many, manyCount := area(nil)
	many[4] = 255
	far, farCount := area([]uint32{0xffffffff})
	for name, image := range map[string][]byte{
		"a value beyond the inode":   testImage(false, cutCount, cut, nil),
		"shared ones that are not":   testImage(false, manyCount, many, nil),
		"a shared one out of range":  testImage(false, farCount, far, nil),
		"attributes beyond the file": testImage(true, 0xffff, good, nil),
	} {
		if got, err := read(t, image); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	_ = count
}

func FuzzTurnstoneXattrs(f *testing.F) {
	b, count := area([]uint32{0}, entry(1, "a", "one"), entry(4, "overlay.opaque", "y"))
	f.Add(true, count, b, entry(6, "capability", "value"))
	f.Add(false, count, b[:20], []byte{})
	f.Fuzz(func(t *testing.T, extended bool, count uint16, area, shared []byte) {
		if len(area) > 3000 || len(shared) > 4096 {
			return
		}
		got, err := read(t, testImage(extended, count, area, shared))
		if err == nil && len(got) > 0 && count == 0 {
			t.Errorf("attributes out of nothing: %q", got)
		}
	})
}
