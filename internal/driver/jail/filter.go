package jail

import (
	"golang.org/x/sys/unix"
)

// denied are the system calls that a jail denies: calls that change namespaces and mounts, that
// reach other processes, that create sockets (the jail's network namespace has no network, but
// namespaces do not cover AF_VSOCK and others), and parts of the kernel with a history of
// vulnerabilities. It is a deny list, because QEMU's needs differ by version; the namespaces do not
// depend on it.
var denied = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_OPEN,
	unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_SOCKET, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_KEYCTL, unix.SYS_ADD_KEY,
	unix.SYS_REQUEST_KEY,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
	unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL,
	unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_VHANGUP, unix.SYS_PERSONALITY,
}

// unknown are system calls that fail as unknown to the kernel, because programs have a fallback for
// that. The flags of clone3(2) are in memory, where a filter cannot see them.
var unknown = []uint32{unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER}

// x32 marks the numbers of another calling convention, which would bypass the filter.
const x32 = 0x40000000

// Offsets in struct seccomp_data (seccomp(2)).
const (
	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16 // the first argument's lower half
)

// filter returns the program for the kernel's filter of system calls: denied calls fail with EPERM,
// unknown calls with ENOSYS, and new processes, other than threads, with EPERM. Sockets of the
// family AF_UNIX may be allowed.
func filter(unixSockets bool) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	answer := func(what uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
	}
	// k does not match: skip the next instruction
	skipUnless := func(kind uint16, k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | kind, Jf: 1, K: k}
	}
	refuse := func(e unix.Errno) unix.SockFilter {
		return answer(unix.SECCOMP_RET_ERRNO | uint32(e))
	}
	f := []unix.SockFilter{
		load(dataArch),
		{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jt: 1, K: unix.AUDIT_ARCH_X86_64},
		answer(unix.SECCOMP_RET_KILL_PROCESS),
		load(dataNumber),
		skipUnless(unix.BPF_JGE, x32), refuse(unix.ENOSYS),
	}
	if unixSockets {
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jf: 4,
			K: unix.SYS_SOCKET},
			load(dataArgument), skipUnless(unix.BPF_JEQ, unix.AF_UNIX),
			answer(unix.SECCOMP_RET_ALLOW), refuse(unix.EPERM))
	}
	for _, n := range denied {
		f = append(f, skipUnless(unix.BPF_JEQ, n), refuse(unix.EPERM))
	}
	for _, n := range unknown {
		f = append(f, skipUnless(unix.BPF_JEQ, n), refuse(unix.ENOSYS))
	}
	for _, n := range []uint32{unix.SYS_FORK, unix.SYS_VFORK} {
		f = append(f, skipUnless(unix.BPF_JEQ, n), refuse(unix.EPERM))
	}
	return append(f,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, Jf: 3, K: unix.SYS_CLONE},
		load(dataArgument),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JSET, Jt: 1,
			K: unix.CLONE_THREAD},
		refuse(unix.EPERM),
		answer(unix.SECCOMP_RET_ALLOW))
}

// confine appends the calls that give up all rights for good: a new program has no more rights than
// this program, and the kernel denies the filter's calls.
func (p *program) confine(unixSockets bool) {
	p.call("no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	f := filter(unixSockets)
	instructions := p.values(f)
	fprog := p.values(struct {
		Len uint16
		_   [6]byte
		At  uint64
	}{Len: uint16(len(f)), At: instructions})
	p.call("seccomp", unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, fprog, 0, 0)
}
