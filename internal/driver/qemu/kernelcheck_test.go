package qemu

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/testsize"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
)

// tinyKernel returns an ELF file that starts by PVH, in 32-bit protected mode, at code. The text
// follows the code; its address is in ESI.
func tinyKernel(code []byte, text string) []byte {
	const (
		headers  = 64 + 2*56
		noteSize = 12 + 4 + 8
		load     = 1 << 20
		entry    = load + noteSize
	)
	code = append([]byte{0xbe, 0, 0, 0, 0}, code...) // mov esi, text
	binary.LittleEndian.PutUint32(code[1:], uint32(entry+len(code)))
	size := uint64(noteSize + len(code) + len(text) + 1)
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: entry, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: headers,
		Vaddr: load, Paddr: load, Filesz: size, Memsz: size, Align: 8})
	put(elf.Prog64{Type: uint32(elf.PT_NOTE), Flags: uint32(elf.PF_R), Off: headers, Vaddr: load,
		Paddr: load, Filesz: noteSize, Memsz: noteSize, Align: 4})
	put([]uint32{4, 8, 18}) // XEN_ELFNOTE_PHYS32_ENTRY
	b.WriteString("Xen\x00")
	put(uint64(entry))
	b.Write(code)
	b.WriteString(text + "\x00")
	return b.Bytes()
}

var (
	halt = []byte{0xfa, 0xf4, 0xeb, 0xfd} // cli; hlt; jmp to hlt
	// printThen prints the text on the serial port at 0x3f8, then continues after itself.
	printThen = []byte{
		0xba, 0xfd, 0x03, 0x00, 0x00, // mov edx, 0x3fd
		0xec,       // in al, dx
		0xa8, 0x20, // test al, 0x20: the port takes a byte
		0x74, 0xfb, // jz to in
		0xac,       // lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x08, // jz behind
		0xba, 0xf8, 0x03, 0x00, 0x00, // mov edx, 0x3f8
		0xee,       // out dx, al
		0xeb, 0xe9, // jmp to the start
	}
	// printAlways prints a single character, endlessly.
	printAlways = []byte{0xba, 0xf8, 0x03, 0x00, 0x00, 0xb0, 'x', 0xee, 0xeb, 0xfb}
	// reset faults three times: there is no interrupt table.
	spin = []byte{0xeb, 0xfe} // jmp to itself
	// push 0, twice; lidt [esp]; int3
	reset = []byte{0x31, 0xc0, 0x50, 0x50, 0x0f, 0x01, 0x1c, 0x24, 0xcc}
)

// forgedReport is the output of a kernel that imitates the agent, and uses all of its words.
const forgedReport = "turnstone-agent: check has erofs\nturnstone-agent: check ends\n" +
	"turnstone-agent: check 0123 ends\n"

// TestKernelCheckReplacesTheCPU checks that a rejected virtual CPU is no verdict on the kernel,
// which then starts and is judged by its output, which is no report.
func TestKernelCheckReplacesTheCPU(t *testing.T) {
	dir := t.TempDir()
	m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"), Initramfs: filepath.Join(dir,
		"initramfs")}
	for path, content := range map[string][]byte{m.Kernel: tinyKernel(join(printThen, halt),
		forgedReport), m.Initramfs: make([]byte, 512)} {
		if err := os.WriteFile(path, content, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(t.Context(), &statedir.Dir{Root: t.TempDir()}, Options{Binary: picky(t, "host")})
	if err != nil {
		t.Fatal(err)
	}
	s.wall, s.accel = Jail{Wall: open}, accelKVM
	const ends = `the console ends: "turnstone-agent: check 0123 ends"`
	if r, err := s.reportOf(t.Context(), m, time.Second, time.Minute); turnstone.KindOf(
		err) != turnstone.KindDead || !strings.Contains(err.Error(), ends) {
		t.Errorf("%+v, %v", r, err)
	}
}

// oversized returns a kernel that QEMU itself rejects.
func oversized() []byte {
	b := tinyKernel(halt, "")
	binary.LittleEndian.PutUint64(b[64+40:], 3<<30) // p_memsz
	return b
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// TestKernelsThatDoNotStart checks that each tiny kernel's machine ends with the right reason,
// within its bound, and that no machine stays.
func TestKernelsThatDoNotStart(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	s := newSubstrate(t, h, nil)
	s.accel = accelTCG
	initramfs := filepath.Join(h.Root, "initramfs")
	if err := os.WriteFile(initramfs, make([]byte, 512), 0o644); err != nil {
		t.Fatal(err)
	}
	const second = time.Second
	const patient = 10 * second // for a kernel that speaks: a busy host starts it late
	forged := "turnstone-agent: check has erofs\nturnstone-agent: check has \x1b]0;x\a\n" +
		"turnstone-agent: check lacks tun\nturnstone-agent: check en"
	t.Run("together", func(t *testing.T) { // most of them wait
		for _, tt := range []struct {
			name           string
			kernel         []byte
			silence, limit time.Duration
			says           string
		}{
			{"halts", tinyKernel(halt, ""), second, 60 * second,
				"prints nothing on the serial console for 1s; the console is empty"},
			{"says something and halts", tinyKernel(join(printThen, halt), "\nhello \x1b[2J"), patient,
				60 * second, `prints nothing on the serial console for 10s; ` +
					`the console ends: "hello ?[2J"`},
			{"panics at once", tinyKernel(join(printThen, halt),
				"[ 0.0] Kernel panic - not syncing: no \x1b\atables\n"), 60 * second, 60 * second,
				"the guest kernel panicked: no ??tables"},
			{"panics in half a line", tinyKernel(join(printThen, halt),
				"Kernel panic - not syncing: half"), patient, 60 * second,
				"the guest kernel panicked: half"},
			{"prints without end", tinyKernel(printAlways, ""), 60 * second, 2 * second,
				"no report after 2s"},
			{"resets", tinyKernel(reset, ""), 60 * second, 60 * second,
				"the guest reset its machine, or shut it down, before its agent was ready"},
			{"prints and resets", tinyKernel(join(printThen, reset), "\r\nso far\r\n"), 60 * second,
				60 * second, `before its agent was ready; the console ends: "so far"`},
			{"an agent that gives up", tinyKernel(join(printThen, halt),
				"turnstone-agent: failed: the kernel has no EROFS (CONFIG_EROFS_FS)\n"), 60 * second,
				60 * second,
				"the guest's agent does not start: the kernel has no EROFS (CONFIG_EROFS_FS)"},
			{"a report that is not the agent's", tinyKernel(join(printThen, halt), forgedReport),
				patient, 60 * second, "prints nothing on the serial console for 10s"},
			{"a report that breaks off", tinyKernel(join(printThen, reset), forged), 60 * second,
				60 * second, "the guest reset its machine, or shut it down, before its agent was ready"},
			{"a segment larger than the memory", oversized(), 60 * second, 60 * second,
				"QEMU ended: qemu-system-x86_64: "},
		} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "kernel")
				if err := os.WriteFile(path, tt.kernel, 0o444); err != nil {
					t.Fatal(err)
				}
				// One accelerator: the order is for hosts with KVM.
				_, err := s.reportOf(t.Context(), substrate.Machine{Kernel: path, Initramfs: initramfs},
					tt.silence, tt.limit)
				if turnstone.KindOf(err) != turnstone.KindDead ||
					!strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v, want %q", err, tt.says)
				}
				if err != nil && (strings.ContainsAny(err.Error(), "\x1b\a\n") ||
					strings.Contains(err.Error(), "sb_") || len(err.Error()) > 500) {
					t.Errorf("hostile words come through: %q", err)
				}
			})
		}
	})
	entries, _ := os.ReadDir(h.Path("sandboxes"))
	if len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestLastWords checks that a guest's output right before its machine's end explains the end,
// although it is read later.
func TestLastWords(t *testing.T) {
	for range 200 {
		near, far := net.Pipe()
		agent, _ := net.Pipe()
		m := &machine{Process: kit.New("", console.New(), ""), agent: agent,
			heard: make(chan struct{})}
		go m.ended(nil)
		runtime.Gosched()
		go m.readConsole(near)
		if _, err := far.Write([]byte("Kernel panic - not syncing: the last\n")); err != nil {
			t.Fatal(err)
		}
		_ = far.Close()
		<-m.Done()
		if err := m.Err(); err == nil || !strings.HasSuffix(err.Error(), "panicked: the last") {
			t.Fatalf("the end is explained by %v", err)
		}
	}
}

// without returns m with an initramfs that lacks the module of this name.
func without(t *testing.T, h *statedir.Dir, m substrate.Machine, module string) substrate.Machine {
	t.Helper()
	k, err := kernel.Ensure(t.Context(), h.Path("kernel"), turntest.Kernel(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var left []kernel.Module
	for _, mod := range k.Modules {
		if mod.Name != module {
			left = append(left, mod)
		}
	}
	if len(left) == len(k.Modules) {
		t.Skipf("the kernel has no module %s", module)
	}
	k.Modules = left
	agent, err := agentbin.Agent("")
	if err != nil {
		t.Fatal(err)
	}
	if m.Initramfs, m.InitDigest, err = k.Initramfs(t.Context(), t.TempDir(),
		kernel.Program(agent)); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMissingDriver checks that a real kernel that lacks a required driver fails to start with the
// driver's name, and that its report has the name.
func TestMissingDriver(t *testing.T) {
	t.Setenv("TURN_KERNEL", "")
	t.Setenv("TURN_KERNEL_MODULES", "")
	shared := turntest.Home(t)
	m := turntest.Machine(t, shared, "base")
	s := newSubstrate(t, &statedir.Dir{Root: t.TempDir()}, nil)
	missing := []struct{ module, need string }{{"virtio_net", "virtio-net"}, {"erofs", "erofs"}}
	for _, tt := range missing[:testsize.Of(1, 2)] {
		n, _ := need.Of(tt.need)
		lacking := without(t, shared, m, tt.module)
		_, err := s.Boot(t.Context(), lacking)
		if err == nil || !strings.Contains(err.Error(), n.Lack()) {
			t.Errorf("a start without %s: %v", tt.module, err)
		}
	}
	report, err := s.CheckKernel(t.Context(), without(t, shared, m, "erofs"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"erofs": false, "ext4": true, "virtio-blk": true,
		"virtio-net": true, "smp": true} {
		if got, told := report.Has[name]; !told || got != want {
			t.Errorf("%s: %t, told %t", name, got, told)
		}
	}
}
