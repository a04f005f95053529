package machine

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestReadable checks that readable and unreadable words of this process are distinguished, and
// that the process survives. The kernel that runs the test protects its memory.
func TestReadable(t *testing.T) {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	address := uintptr(unsafe.Pointer(&page[0]))
	if !readable(address) {
		t.Error("a page that may be read is not readable")
	}
	if err := unix.Mprotect(page, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if readable(address) {
		t.Error("a page that may not be read is readable")
	}
	if err := unix.Munmap(page); err != nil {
		t.Fatal(err)
	}
	for range 100 { // a fault has no lasting effect
		for _, address := range append(kernelMemory, 0, 1<<63) {
			if readable(address) {
				t.Fatalf("%#x is readable", address)
			}
		}
	}
}

func TestAskKernel(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	w := askKernel()
	if w.release == "" || w.release != unix.ByteSliceToString(u.Release[:]) ||
		w.cpus < 1 || w.open {
		t.Errorf("%+v", w)
	}
}

// TestOpenKeepsQuiet checks that the kernel logs nothing about the failed reads, and logs other
// faults as before.
func TestOpenKeepsQuiet(t *testing.T) {
	k := kernelView{proc: t.TempDir()}
	if k.open() {
		t.Error("the memory of this kernel is open")
	}
	trace := filepath.Join(k.proc, "sys/debug/exception-trace")
	if err := os.MkdirAll(filepath.Dir(trace), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"1\n", "0\n"} {
		if err := os.WriteFile(trace, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		said := ""
		k.quietly(func() {
			b, _ := os.ReadFile(trace)
			said = string(b)
		})
		if after, err := os.ReadFile(trace); err != nil || said != "0\n" ||
			string(after) != before {
			t.Errorf("%q, then %q, %v", said, after, err)
		}
	}
}

func BenchmarkReadable(b *testing.B) {
	for b.Loop() {
		readable(kernelMemory[0])
	}
}
