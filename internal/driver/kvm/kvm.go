//go:build linux && amd64

// Package kvm cheaply finds out that KVM is unusable: it runs a guest of a few instructions that
// every kernel executes early. Nested and emulated hosts open /dev/kvm, create machines, and then
// fail at one of these instructions. A guest that passes proves nothing: a proof is a kernel that
// really starts.
package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of linux/kvm.h (https://docs.kernel.org/virt/kvm/api.html).
const (
	getAPIVersion     = 0xae00
	createVM          = 0xae01
	getVCPUMmapSize   = 0xae04
	getSupportedCPUID = 0xc008ae05
	setMemoryRegion   = 0x4020ae46
	createVCPU        = 0xae41
	run               = 0xae80
	setRegs           = 0x4090ae82
	getSregs          = 0x8138ae83
	setSregs          = 0x4138ae84
	setCPUID2         = 0x4008ae90

	exitHLT           = 5
	exitInternalError = 17
)

// Addresses in the guest's memory.
const (
	codeAt   = 0x1000
	pml4At   = 0x2000
	pdptAt   = 0x3000
	pdAt     = 0x4000
	wordsAt  = 0x5000 // operand of cmpxchg16b
	saveAt   = 0x6000 // area of xsave
	memory   = 0x200000
	maxCPUID = 256
)

// program is the guest's code: xsetbv, xsave, xrstor, cmpxchg16b, hlt.
var program = []byte{
	0x31, 0xc9, // xor ecx, ecx
	0xb8, 0x03, 0x00, 0x00, 0x00, // mov eax, 3 (x87 and SSE)
	0x31, 0xd2, // xor edx, edx
	0x0f, 0x01, 0xd1, // xsetbv
	0x0f, 0xae, 0x26, // xsave [rsi]
	0x0f, 0xae, 0x2e, // xrstor [rsi]
	0x31, 0xc0, // xor eax, eax
	0xf0, 0x48, 0x0f, 0xc7, 0x0f, // lock cmpxchg16b [rdi]
	0xf4, // hlt
}

// ErrEmulated means that the host runs KVM's guests in an emulator that lacks instructions that
// every kernel needs.
var ErrEmulated = errors.New("its guests are emulated, and xrstor or cmpxchg16b is not")

// Try runs the guest on device, such as "/dev/kvm". An error says why KVM cannot be used; it wraps
// fs.ErrNotExist or fs.ErrPermission if the device cannot be opened. Try takes some milliseconds.
func Try(device string) error { return try(device, program) }

func try(device string, code []byte) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// KVM requires that a single thread makes all of a vCPU's requests.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if v, err := ioctl(int(f.Fd()), getAPIVersion, 0); err != nil || v != 12 {
		return fmt.Errorf("%s is not KVM of API version 12: %d, %w", device, v, err)
	}
	vm, err := ioctl(int(f.Fd()), createVM, 0)
	if err != nil {
		return fmt.Errorf("no virtual machine can be created: %w", err)
	}
	defer unix.Close(vm)
	mem, err := unix.Mmap(-1, 0, memory, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	fill(mem, code)
	region := struct {
		slot, flags     uint32
		gpa, size, addr uint64
	}{0, 0, 0, memory, uint64(uintptr(unsafe.Pointer(&mem[0])))}
	if _, err := ioctl(vm, setMemoryRegion, uintptr(unsafe.Pointer(&region))); err != nil {
		return fmt.Errorf("the guest gets no memory: %w", err)
	}
	vcpu, err := ioctl(vm, createVCPU, 0)
	if err != nil {
		return fmt.Errorf("no virtual CPU can be created: %w", err)
	}
	defer unix.Close(vcpu)
	if err := prepare(int(f.Fd()), vcpu); err != nil {
		return err
	}
	return execute(int(f.Fd()), vcpu)
}

// fill writes the program and the page tables, which map the first 2 MiB one to one.
func fill(mem, code []byte) {
	copy(mem[codeAt:], code)
	binary.LittleEndian.PutUint64(mem[pml4At:], pdptAt|3)
	binary.LittleEndian.PutUint64(mem[pdptAt:], pdAt|3)
	binary.LittleEndian.PutUint64(mem[pdAt:], 0x83) // present, writable, a page of 2 MiB
}

// prepare puts the virtual CPU into long mode at the program's start.
func prepare(kvm, vcpu int) error {
	var cpuid struct {
		n, pad  uint32
		entries [maxCPUID][40]byte
	}
	cpuid.n = maxCPUID
	if _, err := ioctl(kvm, getSupportedCPUID, uintptr(unsafe.Pointer(&cpuid))); err != nil {
		return fmt.Errorf("the features of a virtual CPU are unknown: %w", err)
	}
	if _, err := ioctl(vcpu, setCPUID2, uintptr(unsafe.Pointer(&cpuid))); err != nil {
		return fmt.Errorf("a virtual CPU accepts no features: %w", err)
	}
	var s [0x138]byte // struct kvm_sregs
	if _, err := ioctl(vcpu, getSregs, uintptr(unsafe.Pointer(&s))); err != nil {
		return err
	}
	// struct kvm_segment: base, limit, selector, type, present, dpl, db, s, l, g, avl, unusable,
	// padding.
	segment := func(i int, kind, long byte) {
		b := s[i*24 : i*24+24]
		clear(b)
		binary.LittleEndian.PutUint32(b[8:], 0xffffffff)
		binary.LittleEndian.PutUint16(b[12:], uint16(8*(i+1)))
		b[14], b[15], b[17], b[18], b[19], b[20] = kind, 1, 1-long, 1, long, 1
	}
	segment(0, 11, 1) // cs: execute, read, accessed
	for i := 1; i < 6; i++ {
		segment(i, 3, 0) // ds to ss: read, write, accessed
	}
	const crAt = 8*24 + 2*16 // after eight segments and two tables
	for i, v := range []uint64{
		0x80050033, // cr0: PG, AM, WP, NE, ET, MP, PE
		0,          // cr2
		pml4At,     // cr3
		0x40620,    // cr4: OSXSAVE, OSXMMEXCPT, OSFXSR, PAE
		0,          // cr8
		0x500,      // efer: LMA, LME
	} {
		binary.LittleEndian.PutUint64(s[crAt+8*i:], v)
	}
	if _, err := ioctl(vcpu, setSregs, uintptr(unsafe.Pointer(&s))); err != nil {
		return fmt.Errorf("a virtual CPU does not enter long mode: %w", err)
	}
	var r [18]uint64 // struct kvm_regs: rax rbx rcx rdx rsi rdi rsp rbp r8 to r15 rip rflags
	r[4], r[5], r[6], r[16], r[17] = saveAt, wordsAt, memory-16, codeAt, 2
	_, err := ioctl(vcpu, setRegs, uintptr(unsafe.Pointer(&r)))
	return err
}

// execute runs the program to its end.
func execute(kvm, vcpu int) error {
	size, err := ioctl(kvm, getVCPUMmapSize, 0)
	if err != nil {
		return err
	}
	shared, err := unix.Mmap(vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(shared)
	if _, err = ioctl(vcpu, run, 0); err != nil {
		return fmt.Errorf("a guest does not run: %w", err)
	}
	switch reason := binary.LittleEndian.Uint32(shared[8:]); reason { // struct kvm_run
	case exitHLT:
		return nil
	case exitInternalError:
		return ErrEmulated
	default:
		return fmt.Errorf("a guest of nine instructions ends for the reason %d of KVM", reason)
	}
}

// maxInterrupted bounds how often a request is repeated.
const maxInterrupted = 10_000

// ioctl makes a request, and repeats it if a signal of the Go runtime interrupts it: signals
// interrupt the creation and the run of a machine.
//
//go:uintptrescapes
func ioctl(fd int, req, arg uintptr) (int, error) {
	for range maxInterrupted {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, arg)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
	return 0, unix.EINTR
}
