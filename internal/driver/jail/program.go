package jail

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A program is a list of system calls, as a static executable of a few kilobytes. It does what a
// new process must do before it becomes another program, if Go's SysProcAttr has no field for it.
// It needs neither a re-execution of the caller's own program nor a compiler, and loads at once.
type program struct {
	data  []byte // from dataAt on
	calls []call
}

// A call is a system call with a text that names it in an error.
type call struct {
	number    uint64
	arguments [6]uint64
	what      uint64 // address of a text
	length    uint64
}

const (
	baseAt = 0x400000
	codeAt = baseAt + 64 + 56 // behind the headers
	dataAt = baseAt + 0x1000
)

// walker makes the calls in sequence. At the first failure it writes the call's text to standard
// error and exits with the error's number. The address of the table belongs at offset 2.
var walker = []byte{
	0x48, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, // mov rbx, table
	0x48, 0x8b, 0x03, // next: mov rax, [rbx]
	0x48, 0x8b, 0x7b, 0x08, // mov rdi, [rbx+8]
	0x48, 0x8b, 0x73, 0x10, // mov rsi, [rbx+16]
	0x48, 0x8b, 0x53, 0x18, // mov rdx, [rbx+24]
	0x4c, 0x8b, 0x53, 0x20, // mov r10, [rbx+32]
	0x4c, 0x8b, 0x43, 0x28, // mov r8, [rbx+40]
	0x4c, 0x8b, 0x4b, 0x30, // mov r9, [rbx+48]
	0x0f, 0x05, // syscall
	0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, // cmp rax, -4095
	0x73, 0x06, // jae failed
	0x48, 0x83, 0xc3, 0x48, // add rbx, 72
	0xeb, 0xd5, // jmp next
	0x49, 0x89, 0xc4, // failed: mov r12, rax
	0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1 (write)
	0xbf, 0x02, 0x00, 0x00, 0x00, // mov edi, 2
	0x48, 0x8b, 0x73, 0x38, // mov rsi, [rbx+56]
	0x48, 0x8b, 0x53, 0x40, // mov rdx, [rbx+64]
	0x0f, 0x05, // syscall
	0x44, 0x89, 0xe7, // mov edi, r12d
	0xf7, 0xdf, // neg edi
	0xb8, 0xe7, 0x00, 0x00, 0x00, // mov eax, 231 (exit_group)
	0x0f, 0x05, // syscall
}

// bytes adds b to the program and returns its address.
func (p *program) bytes(b []byte) uint64 {
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	at := dataAt + uint64(len(p.data))
	p.data = append(p.data, b...)
	return at
}

// text adds a string to the program, with the terminating zero byte that the kernel needs.
func (p *program) text(s string) uint64 { return p.bytes(append([]byte(s), 0)) }

// texts adds a list of strings to the program, in execve(2)'s form.
func (p *program) texts(list []string) uint64 {
	addresses := make([]uint64, len(list)+1)
	for i, s := range list {
		addresses[i] = p.text(s)
	}
	return p.values(addresses)
}

// values adds plain data to the program, as a C structure without padding.
func (p *program) values(v any) uint64 {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, v) // writing to a Buffer does not fail
	return p.bytes(b.Bytes())
}

// call appends a system call. what names it in an error.
func (p *program) call(what string, number int, arguments ...uint64) {
	text := []byte(marker + what + "\n")
	c := call{number: uint64(number), what: p.bytes(text), length: uint64(len(text))}
	copy(c.arguments[:], arguments)
	p.calls = append(p.calls, c)
}

// execute appends the call that makes the process the program at path.
func (p *program) execute(path string, argv, env []string) {
	p.call("execve "+path, unix.SYS_EXECVE, p.text(path), p.texts(argv), p.texts(env))
}

// awaitAt is the address of a page far from the program.
const awaitAt = 0x10000000

// await appends the calls that wait until the parent writes "/" to the pipe fd, and that fail once
// the pipe has no writer. The parent writes after the start, when the parent-death signal is set:
// the pipe detects a parent that died before, and the signal reports a parent that dies later. The
// parent's ID does not help: in a new PID namespace it is always 0, and the namespace's first
// process cannot kill itself. The next call uses the byte as a path, because a read of no bytes
// does not fail.
func (p *program) await(fd int) {
	const what = "the process that starts it is gone"
	p.call("mmap", unix.SYS_MMAP, awaitAt, 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, negative(-1), 0)
	p.call("read", unix.SYS_READ, uint64(fd), awaitAt, 1)
	p.call(what, unix.SYS_ACCESS, awaitAt, unix.F_OK)
	p.call("close", unix.SYS_CLOSE, uint64(fd))
}

// exit appends a successful exit.
func (p *program) exit() { p.call("exit", unix.SYS_EXIT_GROUP, 0) }

// elf returns the executable. It must end with execute or exit.
func (p *program) elf() []byte {
	table := p.values(p.calls)
	size := dataAt - baseAt + uint64(len(p.data))
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: codeAt, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: baseAt,
		Paddr:  baseAt,
		Filesz: size, Memsz: size, Align: 0x1000})
	code := bytes.Clone(walker)
	binary.LittleEndian.PutUint64(code[2:], table)
	b.Write(code)
	b.Write(make([]byte, dataAt-baseAt-uint64(b.Len())))
	b.Write(p.data)
	return b.Bytes()
}
