package parked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// calls is a program that makes the system calls of a table, and stops. RBX is the table's address,
// and R12 its length. An entry has a number and five arguments, and gets the result in place of the
// number.
var calls = []byte{
	0x48, 0x8b, 0x03, // 1: mov (%rbx),%rax
	0x48, 0x8b, 0x7b, 0x08, // mov 8(%rbx),%rdi
	0x48, 0x8b, 0x73, 0x10, // mov 16(%rbx),%rsi
	0x48, 0x8b, 0x53, 0x18, // mov 24(%rbx),%rdx
	0x4c, 0x8b, 0x53, 0x20, // mov 32(%rbx),%r10
	0x4c, 0x8b, 0x43, 0x28, // mov 40(%rbx),%r8
	0x0f, 0x05, // syscall
	0x48, 0x89, 0x03, // mov %rax,(%rbx)
	0x48, 0x83, 0xc3, 0x30, // add $48,%rbx
	0x49, 0xff, 0xcc, // dec %r12
	0x75, 0xdb, // jnz 1b
	trap,
}

const (
	trap     = 0xcc // int3
	callSize = 48   // of an entry of the table

	// below is how far below the program's stack the table is: the dynamic linker was there.
	below = 32 << 10
)

// A Held is a process at its program's first instruction. Its methods are not safe for concurrent
// use.
type Held struct {
	t      Tracee
	layout layout
	regs   unix.PtraceRegs // at the first instruction
	code   []byte          // the program's, in place of which calls is
	stat   []byte
	brk    uint64

	// The kernel takes no map (Linux without CONFIG_CHECKPOINT_RESTORE): root can set its parts.
	oneByOne bool
}

// A call is a system call with its arguments.
type call [6]uint64

// Hold lets t, which was just executed, run to its program's first instruction. After an error the
// caller kills the process.
func Hold(t Tracee) (*Held, error) {
	h := &Held{t: t, code: make([]byte, len(calls))}
	if err := h.await(); err != nil {
		return nil, err
	}
	if err := h.enter(); err != nil {
		return nil, err
	}
	var err error
	if h.stat, err = t.Stat(); err != nil {
		return nil, err
	}
	got, err := h.call([]call{{unix.SYS_BRK}}, nil)
	if err != nil {
		return nil, err
	}
	h.brk = got[0]
	// A kernel that knows no other place of the arguments says so now.
	b := h.layout.block(Start{Argv: []string{t.Name}})
	if _, err = h.call(h.mapped(b), h.memoryMap(b)); err != nil {
		h.oneByOne = true
		_, err = h.call(h.mapped(b), nil)
	}
	return h, err
}

// enter lets the process run until its program begins.
func (h *Held) enter() (err error) {
	pid := h.t.PID
	h.t.On(func() {
		if err = unix.PtraceGetRegs(pid, &h.regs); err != nil {
			return
		}
		stack := make([]byte, stackSize)
		if err = transfer(unix.ProcessVMReadv, pid, part{h.regs.Rsp, stack}); err != nil {
			return
		}
		if h.layout, err = newLayout(stack, h.regs.Rsp, h.t.Name); err != nil {
			return
		}
		entry := uintptr(h.layout.entry)
		if _, err = unix.PtracePeekText(pid, entry, h.code); err != nil {
			return
		}
		if _, err = unix.PtracePokeText(pid, entry, []byte{trap}); err != nil {
			return
		}
		if err = unix.PtraceSetOptions(pid, unix.PTRACE_O_EXITKILL); err != nil {
			return
		}
		err = unix.PtraceCont(pid, 0)
	})
	if err != nil {
		return fmt.Errorf("before the dynamic linker: %w", err)
	}
	if err := h.await(); err != nil {
		return err
	}
	h.t.On(func() {
		if err = unix.PtraceGetRegs(pid, &h.regs); err == nil {
			_, err = unix.PtracePokeText(pid, uintptr(h.layout.entry), calls)
		}
	})
	if err != nil {
		return fmt.Errorf("after the dynamic linker: %w", err)
	}
	if h.regs.Rip != h.layout.entry+1 || h.regs.Rsp != h.layout.sp {
		return errors.New("the program begins otherwise than was expected")
	}
	h.regs.Rip = h.layout.entry
	return nil
}

// Release lets the process begin as s, which must fit (see Fits). After an error the caller kills
// the process, which has run nothing of its program.
func (h *Held) Release(s Start) error {
	if !Fits(h.t.Name, s) {
		return errors.New("the process has no room for it")
	}
	select {
	case <-h.t.Stops: // its number may be another process's by now
		return errors.New("the process was continued, or has ended")
	default:
	}
	b := h.layout.block(s)
	mm := h.memoryMap(b)
	list := append(h.mapped(b), call{unix.SYS_CHDIR, uint64(len(mm))})
	for _, m := range s.Move {
		list = append(list, call{unix.SYS_DUP2, uint64(m[0]), uint64(m[1])},
			call{unix.SYS_CLOSE, uint64(m[0])})
	}
	for _, fd := range s.Shut {
		list = append(list, call{unix.SYS_CLOSE, uint64(fd)})
	}
	// The addresses of data in a call are relative until now.
	_, err := h.call(list, append(append(mm, s.Cwd...), 0), part{b.sp, b.stack},
		part{h.layout.text, b.text})
	if err != nil {
		return err
	}
	h.t.On(func() {
		regs := h.regs
		regs.Rsp = b.sp
		if _, err = unix.PtracePokeText(h.t.PID, uintptr(h.layout.entry), h.code); err != nil {
			return
		}
		if err = unix.PtraceSetRegs(h.t.PID, &regs); err == nil {
			err = unix.PtraceDetach(h.t.PID)
		}
	})
	return os.NewSyscallError("ptrace", err)
}

// mapped are the calls that tell the kernel where arguments and environment of b are, which it
// checks after each.
func (h *Held) mapped(b block) []call {
	if !h.oneByOne {
		return []call{{unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP, 0, mapSize}}
	}
	var list []call
	for _, v := range [][2]uint64{{unix.PR_SET_MM_ENV_START, h.layout.text},
		{unix.PR_SET_MM_ENV_END, h.layout.text + uint64(len(b.text))},
		{unix.PR_SET_MM_ENV_START, b.env}, {unix.PR_SET_MM_ARG_END, b.env}} {
		list = append(list, call{unix.SYS_PRCTL, unix.PR_SET_MM, v[0], v[1]})
	}
	return list
}

func (h *Held) memoryMap(b block) []byte {
	return memoryMap(h.stat, h.brk, h.layout.text, b.env, h.layout.text+uint64(len(b.text)))
}

// call writes the parts, and lets the process make the calls. The arguments of chdir(2) and of
// PR_SET_MM_MAP that are addresses are offsets in data. It returns the results.
func (h *Held) call(list []call, data []byte, parts ...part) ([]uint64, error) {
	at := (h.layout.sp - below) &^ 15
	behind := at + uint64(callSize*len(list))
	var table []byte
	for _, c := range list {
		switch {
		case c[0] == unix.SYS_PRCTL && c[2] == unix.PR_SET_MM_MAP:
			c[3] += behind
		case c[0] == unix.SYS_CHDIR:
			c[1] += behind
		}
		for _, v := range c {
			table = binary.NativeEndian.AppendUint64(table, v)
		}
	}
	pid := h.t.PID
	parts = append(parts, part{at, append(table, data...)})
	if err := transfer(unix.ProcessVMWritev, pid, parts...); err != nil {
		return nil, err
	}
	regs := h.regs
	regs.Rbx, regs.R12 = at, uint64(len(list))
	var err error
	h.t.On(func() {
		if err = unix.PtraceSetRegs(pid, &regs); err == nil {
			err = unix.PtraceCont(pid, 0)
		}
	})
	if err != nil {
		return nil, os.NewSyscallError("ptrace", err)
	}
	if err := h.await(); err != nil {
		return nil, err
	}
	table = table[:callSize*len(list)]
	if err := transfer(unix.ProcessVMReadv, pid, part{at, table}); err != nil {
		return nil, err
	}
	got := make([]uint64, len(list))
	for i := range got {
		got[i] = binary.NativeEndian.Uint64(table[callSize*i:])
		if n := -int64(got[i]); n > 0 && n < 4096 {
			return nil, fmt.Errorf("system call %d: %w", list[i][0], syscall.Errno(n))
		}
	}
	return got, nil
}

// await waits for the process to stop at a trap.
func (h *Held) await() error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case ws, ok := <-h.t.Stops:
		switch {
		case !ok:
			return errors.New("the process has ended")
		case ws.StopSignal() != syscall.SIGTRAP:
			return fmt.Errorf("the process got the signal %d", ws.StopSignal())
		}
		return nil
	case <-timer.C:
		return errors.New("the process does not stop")
	}
}

// A part is a piece of a process's memory.
type part struct {
	at   uint64
	data []byte
}

// transfer copies parts from or to a process.
func transfer(f func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), pid int,
	parts ...part) error {
	var local []unix.Iovec
	var remote []unix.RemoteIovec
	want := 0
	for _, p := range parts {
		local = append(local, unix.Iovec{Base: &p.data[0], Len: uint64(len(p.data))})
		remote = append(remote, unix.RemoteIovec{Base: uintptr(p.at), Len: len(p.data)})
		want += len(p.data)
	}
	n, err := f(pid, local, remote, 0)
	runtime.KeepAlive(parts)
	if err == nil && n != want {
		err = errors.New("the process's memory ends")
	}
	return err
}
