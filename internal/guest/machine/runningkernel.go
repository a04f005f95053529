package machine

import (
	"os"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A kernelWord describes the running kernel. It is determined once, when the guest boots, so that
// no clone spends time on it.
type kernelWord struct {
	release string // from uname(2)
	cpus    int    // number of CPUs that are up
	open    bool   // programs can read its memory
}

// askKernel asks the running kernel. It does not read kernel memory: see kernelView.open.
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

// open reports whether programs can read the kernel's memory.
func (k kernelView) open() (open bool) {
	k.quietly(func() {
		for _, address := range kernelMemory {
			open = open || readable(address)
		}
	})
	return open
}

// quietly calls f while the kernel logs no faults, if it allows that: its log is for users of the
// guest.
func (k kernelView) quietly(f func()) {
	trace := k.proc + "/sys/debug/exception-trace"
	if before, err := os.ReadFile(trace); err == nil &&
		os.WriteFile(trace, []byte("0\n"), 0) == nil {
		defer os.WriteFile(trace, before, 0)
	}
	f()
}

// kernelMemory are addresses of the kernel on x86-64 (Documentation/arch/x86/x86_64/mm.rst). The
// last address is valid even if the kernel or its memory is mapped elsewhere: the interrupt table,
// read-only, at the start of the CPU entry area.
var kernelMemory = []uintptr{
	0xffffffff81000000, // its text, unless relocated
	0xffff888000000000, // all physical memory, unless moved
	0xfffffe0000000000,
}

// readable reports whether this process can read the word at address, which does not belong to it.
// A kernel whose memory is separate from its programs answers with a signal, which Go turns into a
// panic. The check takes microseconds.
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

// sink keeps the compiler from removing the read.
//
//lint:ignore U1000 it is written, and nobody needs to read it
var sink uint32
