package trace

import (
	"debug/elf"
	"embed"
	"encoding/binary"
	"io"

	"turnstone.dev/turnstone"
)

//go:embed all:bin
var files embed.FS

// library returns the shared object that is preloaded into bash.
func library() ([]byte, error) {
	b, err := files.ReadFile("bin/tracer.so")
	if err != nil {
		return nil, turnstone.Errorf("trace.load", turnstone.KindUnavailable, "tracer",
			"this program was built without the command tracer").
			WithHint("run make build, which builds the tracer first")
	}
	return b, nil
}

// Check reports whether the program at r, a bash, can be traced: nil, or an Error of kind
// Unavailable with the reason. Do not start a statically linked shell with a Recorder's
// environment: it would keep the descriptors and pass the environment on. All other programs are
// detected by the library, which then cleans up.
func Check(r io.ReaderAt) error {
	refuse := func(why string) error {
		return turnstone.Errorf("trace.check", turnstone.KindUnavailable, "bash",
			"%s", why).
			WithHint("to trace the step's commands, use the distribution's dynamically linked " +
				"bash 4.4 to 5.3")
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return refuse("not a program: " + err.Error())
	}
	if f.Machine != elf.EM_X86_64 {
		return refuse("the tracer does not know this processor")
	}
	dynamic := false
	for _, p := range f.Progs {
		dynamic = dynamic || p.Type == elf.PT_INTERP
	}
	if !dynamic {
		return refuse("it is linked statically")
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return refuse("its symbols cannot be read: " + err.Error())
	}
	for _, s := range symbols {
		if s.Name == "execute_command_internal" && s.Value != 0 {
			code := make([]byte, 32)
			if !readAt(f, s.Value, code) || !relocatable(code) {
				return refuse("the tracer does not know the first instructions of this build's " +
					"function")
			}
			return nil
		}
	}
	return refuse("it is not bash, or its symbols are hidden")
}

func readAt(f *elf.File, addr uint64, b []byte) bool {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr-p.Vaddr <= p.Filesz &&
			p.Filesz-(addr-p.Vaddr) >= uint64(len(b)) {
			_, err := p.ReadAt(b, int64(addr-p.Vaddr))
			return err == nil
		}
	}
	return false
}

// relocatable reports whether code begins with 5 bytes of instructions that work at any address, by
// the rules of tracer.c.
func relocatable(code []byte) bool {
	for n := 0; n < 5; {
		size := instruction(code[n:])
		if size == 0 {
			return false
		}
		n += size
	}
	return true
}

// instruction returns the length of the first instruction, or 0 if the instruction is not known to
// work at any address. The encodings are from the Intel 64 manual, volume 2.
func instruction(b []byte) int {
	if len(b) < 8 {
		return 0
	}
	if binary.BigEndian.Uint32(b) == 0xf30f1efa {
		return 4 // endbr64
	}
	rex := 0
	if b[0]&0xf0 == 0x40 {
		rex = 1
	}
	q := b[rex:]
	switch {
	case q[0]&0xf8 == 0x50 && (rex == 0 || b[0] == 0x41):
		return rex + 1 // push
	case (q[0] == 0x89 || q[0] == 0x8b || q[0] == 0x31 || q[0] == 0x33) && q[1] >= 0xc0:
		return rex + 2 // mov, xor between registers
	case b[0] != 0x48:
		return 0
	case q[0] == 0x83 && q[1] == 0xec:
		return 4 // sub, rsp
	case q[0] == 0x81 && q[1] == 0xec:
		return 7
	case q[0] == 0x8d && q[1] == 0x64 && q[2] == 0x24:
		return 5 // lea, rsp
	case q[0] == 0x8d && q[1] == 0xa4 && q[2] == 0x24:
		return 8
	}
	return 0
}
