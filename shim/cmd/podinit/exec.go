package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

// firstFD is above the descriptors that a started process has.
const firstFD = 16

func ptr(groups []uint32) unsafe.Pointer { return unsafe.Pointer(&groups[0]) }

// execIn starts another process in a running container, and waits for its end.
func execIn(id, name string) (int, error) {
	if err := guest.CheckID(name); err != nil {
		return 1, err
	}
	var p guest.Process
	err := read(id, name, guest.FileConfig, &p)
	_ = os.Remove(guest.File(id, name, guest.FileConfig))
	pid := 0
	said, tell, err2 := os.Pipe()
	err = errors.Join(err, err2)
	if err == nil {
		// its thread is the container's from then on, and this one stays in the sandbox
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			pid, err = startIn(id, &p, tell)
			close(done)
		}()
		<-done
		_ = tell.Close()
	}
	if err != nil {
		report(id, name, err)
		return 1, nil
	}
	return await(id, name, pid, said)
}

// startIn starts the helper in the container's namespaces, where it becomes the process: it needs
// rights there that the process does not have, such as to take the terminal.
func startIn(id string, p *guest.Process, tell *os.File) (int, error) {
	first, err := pidOf(id, "")
	if err != nil {
		return 0, errors.New("the container does not run")
	}
	var space [2]*os.File
	for i, ns := range []string{"mnt", "pid"} {
		if space[i], err = os.Open(fmt.Sprintf("/proc/%d/ns/%s", first, ns)); err != nil {
			return 0, errors.New("the container does not run")
		}
	}
	if err := joinGroup(id); err != nil {
		return 0, err
	}
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	self, err := unix.FcntlInt(exe.Fd(), unix.F_DUPFD_CLOEXEC, firstFD)
	if err != nil {
		return 0, err
	}
	leaveTerminal(p.Terminal)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, os.NewSyscallError("unshare", err)
	}
	own, _ := os.Readlink("/proc/self/ns/pid")
	theirs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first))
	if own != theirs {
		if err := unix.Setns(int(space[1].Fd()), unix.CLONE_NEWPID); err != nil {
			return 0, os.NewSyscallError("setns pid", err)
		}
	}
	if err := unix.Setns(int(space[0].Fd()), unix.CLONE_NEWNS); err != nil {
		return 0, os.NewSyscallError("setns mnt", err)
	}
	if err := unix.Chroot("/"); err != nil { // where the kernel has not changed it
		return 0, os.NewSyscallError("chroot", err)
	}
	config, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer config.Close()
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(self),
		[]string{"podinit", join, id}, &syscall.ProcAttr{Env: []string{},
			Files: []uintptr{0, 1, 2, tell.Fd(), config.Fd()}, Sys: sysProcAttr(p.Terminal, 0)})
	if err != nil {
		_ = write.Close()
		return 0, fmt.Errorf("starting the helper in the container: %w", err)
	}
	go func() { // it may be longer than a pipe
		_ = json.NewEncoder(write).Encode(p)
		_ = write.Close()
	}()
	return pid, nil
}

// joined is the process of an exec before it executes its program. It returns only an error.
func joined() error {
	runtime.LockOSThread()
	tell := os.NewFile(3, "report")
	unix.CloseOnExec(3)
	var p guest.Process
	config := os.NewFile(4, "config")
	err := json.NewDecoder(config).Decode(&p)
	_ = config.Close()
	if err == nil {
		err = makeDir(&p, false)
	}
	if err == nil {
		err = execute(&p)
	}
	_, _ = tell.WriteString(err.Error())
	os.Exit(1)
	return nil
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
	if errors.Is(err, os.ErrNotExist) { // it has ended
		return nil
	}
	if err != nil {
		return err
	}
	err = syscall.Kill(pid, syscall.Signal(n))
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
