package qemu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// talkingKernel returns a kernel that prints text on the first serial port and hangs.
func talkingKernel(text string) []byte {
	return kernelThat(text, 0xf4, 0xeb, 0xfd) // hang: hlt, jmp hang
}

// kernelThat returns a kernel that prints text on the first serial port and executes end.
func kernelThat(text string, end ...byte) []byte {
	const (
		load, noteSize  = 1 << 20, 24
		sizeAt, entryAt = 64 + 32, 64 + 2*56 + 16
		entry           = load + noteSize
	)
	code := []byte{
		0xbe, 0, 0, 0, 0, // mov esi, text
		0xac,       // next: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x07, // jz end
		0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xee,       // out dx, al
		0xeb, 0xf4, // jmp next
	}
	code = append(code, end...)
	binary.LittleEndian.PutUint32(code[1:], uint32(entry+len(code)))
	image := append(append(append(stubKernel(), code...), text...), 0)
	binary.LittleEndian.PutUint64(image[sizeAt:], uint64(noteSize+len(code)+len(text)+1))
	binary.LittleEndian.PutUint64(image[entryAt:], entry)
	return image
}

// TestPanicAtBoot checks that a kernel's panic message is the error, although the machine hangs and
// stays alive; the same holds for the agent's message.
func TestPanicAtBoot(t *testing.T) {
	h, dir := &statedir.Dir{Root: t.TempDir()}, t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"[    0.1] Kernel panic - not syncing: No working \x1b[2J init found.\r\n---[ end": "the guest kernel panicked: No working ?[2J init found.",
		"turnstone-agent: failed: the kernel has no vsock\n":                               "the guest's agent does not start: the kernel has no vsock",
	} {
		m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"), Initramfs: empty, Root: empty,
			Shape:        turnstone.DefaultShape(),
			KernelDigest: turnstone.DigestBytes([]byte(text)),
			KernelIs:     substrate.KernelKind{Own: true, File: "/srv/a kernel"}}
		if err := os.WriteFile(m.Kernel, talkingKernel(text), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := New(t.Context(), h, Options{Kernel: m.GuestKernel()})
		if err != nil {
			t.Fatal(err)
		}
		for what, start := range map[string]func() (substrate.Sandbox, error){
			"boot":    func() (substrate.Sandbox, error) { return s.Boot(t.Context(), m) },
			"restore": func() (substrate.Sandbox, error) { return s.Restore(t.Context(), m) },
		} {
			vm, err := start()
			if err == nil {
				_ = vm.Close()
			}
			if turnstone.KindOf(err) != turnstone.KindDead ||
				!strings.Contains(err.Error(), want) ||
				turnstone.HintOf(err) != m.KernelIs.Advice() {
				t.Errorf("%s: %v (%s)", what, err, turnstone.HintOf(err))
			}
		}
		for _, left := range []string{"sandboxes", "snapshots"} {
			entries, _ := filepath.Glob(h.Path(left, "*"))
			for _, e := range entries {
				if !strings.HasSuffix(e, ".lock") {
					t.Errorf("%s is left", e)
				}
			}
		}
	}
}

// TestKernelAdvice checks that the error of a user's kernel that resets, or is late, names the
// command that checks that file.
func TestKernelAdvice(t *testing.T) {
	h, dir := &statedir.Dir{Root: t.TempDir()}, t.TempDir()
	m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"), Initramfs: filepath.Join(dir,
		"empty"), Root: filepath.Join(dir, "empty"), Shape: turnstone.DefaultShape(),
		KernelIs: substrate.KernelKind{Own: true, File: "/srv/a kernel"}}
	for path, content := range map[string][]byte{m.Kernel: tinyKernel(reset, ""),
		m.Root: make([]byte, 4096)} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(t.Context(), h, Options{Kernel: m.GuestKernel()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Boot(t.Context(), m); turnstone.HintOf(err) != m.KernelIs.Advice() {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	if err := s.wrap(console.New().Late(time.Minute, console.ErrLate)); turnstone.HintOf(
		err) != m.KernelIs.Advice() {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
}
