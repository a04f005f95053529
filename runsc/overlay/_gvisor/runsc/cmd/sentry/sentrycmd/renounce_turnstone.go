// The sandbox's process gives its rights away without being executed again. This file is
// added by Turnstone's build.

package sentrycmd

import (
	"os"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/hostsyscall"
	"gvisor.dev/gvisor/pkg/timing"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// nobody is the user and the group that the sandbox's process is started as.
const nobody = 65534

// renounce takes all capabilities from all threads of this process, which is in its empty
// root already, and starts the process that unmounts /proc when it is no longer needed.
// gVisor executes itself once more for either. An ordinary user's sandbox kept its
// capabilities and its /proc: gVisor leaves them to one that is started so.
func (b *Boot) renounce(timer *timing.Timer) {
	if uid, gid := os.Getuid(), os.Getgid(); uid != nobody || gid != nobody {
		util.Fatalf("the sandbox's process is user %d and group %d, not nobody", uid, gid)
	}
	w, err := forkUnmounter()
	if err != nil {
		util.Fatalf("starting the process that unmounts /proc: %v", err)
	}
	b.procMountSyncFile, b.procMountSyncFD = w, int(w.Fd())
	timer.Reached("unmounter started")
	if err := sandboxsetup.ApplyCapsAllThreads(&specs.LinuxCapabilities{}, timer); err != nil {
		util.Fatalf("dropping capabilities: %v", err)
	}
	timer.Reached("capabilities dropped")
	if b.attached { // a change of credentials can clear it
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			util.Fatalf("setting the parent death signal: %v", err)
		}
	}
}

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// What the unmounter reads and names, where no allocation is needed to get at it.
var (
	unmountSignal [1]byte
	unmountPath   = [...]byte{'/', 'p', 'r', 'o', 'c', 0}
)

// forkUnmounter starts a process that keeps the capabilities of this one until a byte is
// written to the file, unmounts /proc in the mount namespace that both share, and ends.
// It is this process's copy and executes nothing.
func forkUnmounter() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if errno := forkAndUnmount(r.Fd(), w.Fd()); errno != 0 {
		w.Close()
		return nil, errno
	}
	return w, nil
}

// forkAndUnmount returns in the parent only. In the child it must not take a lock, which
// another thread may have held, allocate, or need more stack: see package syscall.
//
//go:norace
func forkAndUnmount(r, w uintptr) unix.Errno {
	var pid, n uintptr
	var errno unix.Errno
	beforeFork() // signals are blocked from here on, in the child for good
	pid, errno = hostsyscall.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
	if errno != 0 || pid != 0 {
		afterFork()
		return errno
	}
	hostsyscall.RawSyscall(unix.SYS_CLOSE, w, 0, 0) // or the end of the parent would not be seen
	n, errno = hostsyscall.RawSyscall(unix.SYS_READ, r, uintptr(unsafe.Pointer(&unmountSignal)), 1)
	if errno == 0 && n == 1 {
		_, errno = hostsyscall.RawSyscall(unix.SYS_UMOUNT2, uintptr(unsafe.Pointer(&unmountPath)), unix.MNT_DETACH, 0)
		hostsyscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
	hostsyscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	panic("unreachable")
}
