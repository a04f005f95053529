package kernel

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"testing/fstest"
)

// elfFile returns an ELF file for x86-64 with a section .modinfo, or a program header for notes, or
// both.
func elfFile(modinfo, notes []byte) []byte {
	const header, progSize, sectSize = 64, 56, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	dataAt := header + progSize
	body := append(append(append([]byte(nil), modinfo...), notes...), names...)
	sectAt := dataAt + len(body)
	le := binary.LittleEndian
	out := make([]byte, header)
	copy(out, "\x7fELF\x02\x01\x01")
	le.PutUint16(out[16:], 1)
	le.PutUint16(out[18:], 62)
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[32:], header)
	le.PutUint64(out[40:], uint64(sectAt))
	le.PutUint16(out[52:], header)
	le.PutUint16(out[54:], progSize)
	le.PutUint16(out[56:], 1)
	le.PutUint16(out[58:], sectSize)
	le.PutUint16(out[60:], 3)
	le.PutUint16(out[62:], 2)
	prog := make([]byte, progSize)
	le.PutUint32(prog, 4) // PT_NOTE
	le.PutUint64(prog[8:], uint64(dataAt+len(modinfo)))
	le.PutUint64(prog[32:], uint64(len(notes)))
	out = append(append(out, prog...), body...)
	section := func(name, kind uint32, offset, size int) {
		s := make([]byte, sectSize)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(offset))
		le.PutUint64(s[32:], uint64(size))
		out = append(out, s...)
	}
	section(0, 0, 0, 0)
	section(1, 1, dataAt, len(modinfo))
	section(10, 3, dataAt+len(modinfo)+len(notes), len(names))
	return out
}

func module(info ...string) []byte {
	return elfFile([]byte(strings.Join(info, "\x00")+"\x00"), nil)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{
		"kernel/drivers/virtio/virtio.ko":      {Data: module("depends=", "name=virtio")},
		"kernel/drivers/virtio/virtio_ring.ko": {Data: module("depends=")},
		"kernel/virtio_pci.ko": {Data: module("license=GPL",
			"depends=virtio_ring,virtio-legacy,virtio")},
		"kernel/virtio-legacy.ko.xz": {Data: pack(t, "xz", module("depends="))},
		"kernel/fs/erofs.ko.zst": {Data: pack(t, "zstd",
			module("depends=libcrc32c"))},
		"kernel/lib/libcrc32c.ko.gz": {Data: pack(t, "gzip",
			module("softdep=pre: crc32c crc32c-fast post: never", "depends=crypto"))},
		"kernel/crc32c-fast.ko": {Data: module("depends=")},
		"kernel/never.ko":       {Data: module("depends=")},
		"kernel/loop_a.ko":      {Data: module("depends=loop_b")},
		"kernel/loop_b.ko":      {Data: module("depends=loop_a")},
		"modules.builtin": {Data: []byte(
			"kernel/fs/ext4/ext4.ko\nkernel/crypto/crypto.ko\n")},
	}
	// Unlike payloads, xz and zstd files of modules have no size at their end.
	for _, name := range []string{"kernel/virtio-legacy.ko.xz", "kernel/fs/erofs.ko.zst"} {
		fsys[name].Data = fsys[name].Data[:len(fsys[name].Data)-4]
	}
	tr, err := openTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		want []wanted
		out  string // names in order, or the error's text
	}{
		{"dependencies first", []wanted{{name: "virtio_pci"}},
			"virtio virtio_legacy virtio_ring virtio_pci"},
		{"compressed, soft and built in", []wanted{{name: "ext4"}, {name: "erofs"}},
			"crc32c_fast libcrc32c erofs"},
		{"once only", []wanted{{name: "virtio"}, {name: "virtio_pci"}, {name: "virtio"}},
			"virtio virtio_legacy virtio_ring virtio_pci"},
		{"a circle ends", []wanted{{name: "loop_a"}}, "loop_b loop_a"},
		{"optional and missing", []wanted{{name: "vmgenid", optional: true}}, ""},
		{"missing", []wanted{{name: "overlay"}}, "no module overlay"},
	} {
		mods, err := tr.resolve(tt.want)
		var names []string
		for _, m := range mods {
			names = append(names, m.name)
			if !isELF(m.content) {
				t.Errorf("%s: %s is not unpacked", tt.name, m.name)
			}
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != tt.out ||
			err != nil && (tt.out == "" || !strings.Contains(got, tt.out)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.out)
		}
	}
}

func TestHostileModules(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]byte{
		"no ELF":     []byte("text"),
		"no modinfo": bytes.Replace(module("depends="), []byte(".modinfo"), []byte(".modlost"), 1),
		"cut":        module("depends=")[:80],
		"empty":      nil,
	} {
		tr, err := openTree(fstest.MapFS{"erofs.ko": {Data: content}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.resolve([]wanted{{name: "erofs"}}); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}
