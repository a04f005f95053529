package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestStrictStops checks that a guest that stops its machine before its script has ended, or again
// afterwards, ends it with an error, and that one which reports crashes without end does, too.
func TestStrictStops(t *testing.T) {
	const again = 0xf7 // a jump to the start of the writes
	write := func(event byte) []byte {
		return []byte{0x66, 0xba, 0x05, 0x05, // mov dx, 0x505: pvpanic as an ISA device
			0xb0, event, // mov al, event
			0xee, 0xeb, again} // out dx, al; jmp
	}
	const ready = "turnstone-agent: ready\n"
	for name, c := range map[string]struct {
		text   string
		event  byte
		starts bool
	}{
		"before the end": {"", 1, false},
		"twice":          {ready, 1, true},
		"crashes":        {"", 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, dir := &statedir.Dir{Root: t.TempDir()}, t.TempDir()
			m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"),
				Initramfs: filepath.Join(dir, "empty"), Root: filepath.Join(dir, "empty"),
				Shape:       turnstone.Shape{CPUs: 1, Memory: 128 << 20, Disk: 64 << 20},
				KernelIs:    substrate.KernelKind{Own: true, File: "/srv/a kernel"},
				Determinism: &substrate.Determinism{Clock: turnstone.DefaultClock()}}
			for path, content := range map[string][]byte{m.Root: make([]byte, 4096),
				m.Kernel: kernelThat(c.text, write(c.event)...)} {
				if err := os.WriteFile(path, content, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s, err := New(t.Context(), h, Options{Kernel: m.GuestKernel()})
			if err != nil {
				t.Fatal(err)
			}
			s.more = []string{"-device", "pvpanic"}
			vm, err := s.Restore(t.Context(), m)
			if err == nil {
				<-vm.Done()
				if err = vm.Err(); !c.starts {
					t.Error("it has started")
				}
				_ = vm.Close()
			}
			if turnstone.KindOf(err) != turnstone.KindDead || turnstone.HintOf(err) == "" ||
				!strings.Contains(err.Error(), "stopped its machine") {
				t.Errorf("%v (%s)", err, turnstone.HintOf(err))
			}
		})
	}
}
