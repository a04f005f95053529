package machine

import (
	"os"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A kernelWord is what the running kernel says of itself, or shows. It is found out once, as
// the guest boots, so that no clone pays for it.
type kernelWord struct {
	release string // by uname(2)
	cpus    int    // that are up
	open    bool   // programs can read its memory
}

// askKernel asks the running kernel. It does not look at its memory: see kernelView.open.
func askKernel() (w kernelWord) {
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		w.release = unix.ByteSliceToString(u.Release[:])
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		w.cpus = set.Count()
	}
	return w
}

// open tells whether programs can read the kernel's memory.
func (k kernelView) open() (open bool) {
	k.quietly(func() {
		for _, address := range kernelMemory {
			open = open || readable(address)
		}
	})
	return open
}

// quietly calls f, of which the kernel logs no fault where it can be told so: its log is for
// those who work in the guest.
func (k kernelView) quietly(f func()) {
	trace := k.proc + "/sys/debug/exception-trace"
	if before, err := os.ReadFile(trace); err == nil && os.WriteFile(trace, []byte("0\n"), 0) == nil {
		defer func() { _ = os.WriteFile(trace, before, 0) }()
	}
	f()
}

// kernelMemory are addresses of the kernel on x86-64 (Documentation/arch/x86/x86_64/mm.rst).
// Where the kernel is loaded elsewhere, or its memory mapped elsewhere, the last is there
// all the same: the interrupt table, read-only, at the start of the CPU entry area.
var kernelMemory = []uintptr{
	0xffffffff81000000, // its text, when it is not relocated
	0xffff888000000000, // all physical memory, when it is not moved
	0xfffffe0000000000,
}

// readable tells whether this process can read the word at address, which is none of its
// own. A kernel that the CPU separates from its programs answers with a signal, which Go
// makes a panic. It takes microseconds.
//
//go:norace
//go:nocheckptr
func readable(address uintptr) (can bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			can = false
		}
	}()
	sink = **(**uint32)(unsafe.Pointer(&address))
	return true
}

// sink keeps the compiler from leaving the read out.
//
//lint:ignore U1000 it is written, and nobody needs to read it
var sink uint32
