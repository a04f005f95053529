package diskcalltest

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A watched system call changes files.
type watched struct {
	name string
	path int // the argument with the path; noPath: the first one is a descriptor
	// creates is the argument with flags of open: only a call with O_CREAT is watched. 0: every call.
	creates int
	grows   bool // fails if the disk is full
}

const noPath = -1

// watchedCalls returns the system calls that are watched, by number.
func watchedCalls() map[uint32]watched {
	calls := map[uint32]watched{
		unix.SYS_WRITE:     {name: "write", path: noPath, grows: true},
		unix.SYS_PWRITE64:  {name: "pwrite", path: noPath, grows: true},
		unix.SYS_WRITEV:    {name: "writev", path: noPath, grows: true},
		unix.SYS_FTRUNCATE: {name: "ftruncate", path: noPath},
		unix.SYS_FALLOCATE: {name: "fallocate", path: noPath, grows: true},
		unix.SYS_OPENAT:    {name: "openat", path: 1, creates: 2, grows: true},
		unix.SYS_RENAMEAT:  {name: "renameat", path: 1},
		unix.SYS_RENAMEAT2: {name: "renameat2", path: 1},
		unix.SYS_UNLINKAT:  {name: "unlinkat", path: 1},
		unix.SYS_MKDIRAT:   {name: "mkdirat", path: 1, grows: true},
		unix.SYS_LINKAT:    {name: "linkat", path: 1, grows: true},
		unix.SYS_SYMLINKAT: {name: "symlinkat", path: 0, grows: true},
	}
	if runtime.GOARCH == "amd64" { // calls that newer architectures do not have
		calls[2] = watched{name: "open", path: 0, creates: 1, grows: true}
		calls[82] = watched{name: "rename", path: 0}
		calls[83] = watched{name: "mkdir", path: 0, grows: true}
		calls[84] = watched{name: "rmdir", path: 0}
		calls[86] = watched{name: "link", path: 0, grows: true}
		calls[87] = watched{name: "unlink", path: 0}
	}
	return calls
}

// Offsets in struct seccomp_data, and results of a filter (linux/seccomp.h).
const (
	offsetNumber  = 0
	offsetArg     = 16
	sizeArg       = 8
	verdictNotify = 0x7fc00000
	verdictAllow  = 0x7fff0000

	setModeFilter = 1
	flagTSync     = 1 << 0
	flagListener  = 1 << 3
	flagTSyncErr  = 1 << 4
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(how uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func end(verdict uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict}
}

// filter returns a program that notifies of watched calls, except those to standard streams.
func filter() []unix.SockFilter {
	prog := []unix.SockFilter{load(offsetNumber)}
	for nr, w := range watchedCalls() {
		block := []unix.SockFilter{end(verdictNotify)}
		switch {
		case w.creates > 0:
			block = []unix.SockFilter{load(offsetArg + uint32(w.creates)*sizeArg),
				jump(unix.BPF_JSET, unix.O_CREAT, 0, 1), end(verdictNotify), end(verdictAllow)}
		case w.path == noPath:
			block = []unix.SockFilter{load(offsetArg), jump(unix.BPF_JGT, 2, 0, 1), end(verdictNotify),
				end(verdictAllow)}
		}
		prog = append(prog, jump(unix.BPF_JEQ, nr, 0, uint8(len(block))))
		prog = append(prog, block...)
	}
	return append(prog, end(verdictAllow))
}

// Confine makes each call of this process that changes files wait for the process that called Run,
// which learns of it by a line on standard output. Nothing ends that.
func Confine() error {
	prog := filter()
	arg := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	var fd uintptr
	err := onThisThread(func() error {
		// Other threads get the filter, and the right to it, from this one.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		var errno unix.Errno
		fd, _, errno = unix.Syscall(unix.SYS_SECCOMP, setModeFilter, flagTSync|flagListener|flagTSyncErr,
			uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	_, err = fmt.Fprintf(os.Stdout, "%s%d\n", announcement, fd)
	return err
}

func onThisThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
