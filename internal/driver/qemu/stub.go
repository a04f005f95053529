package qemu

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// stubKernel returns the smallest kernel that QEMU loads by the same path as a real kernel: an ELF
// file with the PVH entry note (Xen's boot protocol for x86/HVM direct boot) and one page to load.
//
// A restore needs the same option ROM as the boot, because ROMs are part of the state; QEMU never
// executes the kernel. Loading the real kernel, of more than 50 MB, would cost each clone that much
// time and private memory.
func stubKernel() []byte {
	const (
		headers  = 64 + 2*56
		noteSize = 12 + 4 + 8
		load     = 1 << 20 // load address of kernels, above the first MiB
	)
	var b bytes.Buffer
	// writing to a Buffer does not fail
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: load, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: headers,
		Vaddr: load, Paddr: load,
		Filesz: noteSize, Memsz: 4096, Align: 8})
	put(elf.Prog64{Type: uint32(elf.PT_NOTE), Flags: uint32(elf.PF_R), Off: headers, Vaddr: load,
		Paddr:  load,
		Filesz: noteSize, Memsz: noteSize, Align: 4})
	// XEN_ELFNOTE_PHYS32_ENTRY: the 32-bit physical entry point.
	put([]uint32{4, 8, 18})
	b.WriteString("Xen\x00")
	put(uint64(load))
	return b.Bytes()
}
