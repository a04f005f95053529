package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

func ptr(groups []uint32) unsafe.Pointer { return unsafe.Pointer(&groups[0]) }

// execIn starts another process in a running container, and waits for its end.
func execIn(id, name string) (int, error) {
	if err := guest.CheckID(name); err != nil {
		return 1, err
	}
	pid, said, err := startIn(id, name)
	if err != nil {
		report(id, name, err)
		return 1, nil
	}
	return await(id, name, pid, said)
}

func startIn(id, name string) (int, io.Reader, error) {
	var p guest.Process
	if err := read(id, name, guest.FileConfig, &p); err != nil {
		return 0, nil, err
	}
	first, err := pidOf(id, "")
	if err != nil {
		return 0, nil, errors.New("the container does not run")
	}
	var space [2]*os.File
	for i, ns := range []string{"mnt", "pid"} {
		if space[i], err = os.Open(fmt.Sprintf("/proc/%d/ns/%s", first, ns)); err != nil {
			return 0, nil, errors.New("the container does not run")
		}
	}
	if err := joinGroup(id); err != nil {
		return 0, nil, err
	}
	leaveTerminal(p.Terminal)
	runtime.LockOSThread() // never unlocked: the thread is the container's from here on
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, nil, os.NewSyscallError("unshare", err)
	}
	own, _ := os.Readlink("/proc/self/ns/pid")
	theirs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first))
	if own != theirs {
		if err := unix.Setns(int(space[1].Fd()), unix.CLONE_NEWPID); err != nil {
			return 0, nil, os.NewSyscallError("setns pid", err)
		}
	}
	if err := unix.Setns(int(space[0].Fd()), unix.CLONE_NEWNS); err != nil {
		return 0, nil, os.NewSyscallError("setns mnt", err)
	}
	if err := unix.Chroot("/"); err != nil { // where the kernel has not changed it
		return 0, nil, os.NewSyscallError("chroot", err)
	}
	path, err := prepare(&p)
	if err != nil {
		return 0, nil, err
	}
	if err := drop(&p); err != nil {
		return 0, nil, err
	}
	pid, err := syscall.ForkExec(path, p.Args, &syscall.ProcAttr{Env: p.Env,
		Files: []uintptr{0, 1, 2}, Sys: sysProcAttr(p.Terminal, 0)})
	if err != nil {
		return 0, nil, &os.PathError{Op: "exec", Path: p.Args[0], Err: err}
	}
	return pid, strings.NewReader(""), nil
}

func pidOf(id, exec string) (int, error) {
	b, err := os.ReadFile(guest.File(id, exec, guest.FilePID))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(string(b))
	if err == nil && pid <= 1 {
		err = errors.New("it is no process of a container")
	}
	return pid, err
}

// kill sends a signal to the container's first process, or to that of an exec ("-": the first).
func kill(id, exec, sig string) error {
	n, err := strconv.Atoi(sig)
	if err != nil || n <= 0 || n > 64 {
		return errors.New("it is no signal")
	}
	if exec == "-" {
		exec = ""
	} else if err := guest.CheckID(exec); err != nil {
		return err
	}
	pid, err := pidOf(id, exec)
	if err != nil {
		return err
	}
	err = syscall.Kill(pid, syscall.Signal(n))
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
