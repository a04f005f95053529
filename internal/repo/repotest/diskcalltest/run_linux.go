// Package diskcalltest runs a process that has to ask before each of its changes of files. A test can
// so kill it before any of them, or let the disk be full from any of them on. It uses notifications
// of seccomp (seccomp_unotify(2)), so that nothing has to be prepared in what is tested, such as the
// database.
package diskcalltest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const announcement = "calls are watched by descriptor "

// A Call is one that changes files.
type Call struct {
	Name  string // of the system call
	Path  string
	Grows bool // it needs space on the disk
}

func (c Call) String() string { return c.Name + " " + c.Path }

// A Verdict is what becomes of a call.
type Verdict int

// The verdicts.
const (
	Continue Verdict = iota
	Kill             // the process ends before the call, with SIGKILL
	Full             // the call fails with ENOSPC
)

// Run starts cmd, which calls Confine, and asks judge for each of its calls from then on. It returns
// when the process has ended, with what it printed, and its error as exec.Cmd.Wait does.
func Run(cmd *exec.Cmd, judge func(n int, c Call) Verdict) (output string, err error) {
	// A signal of the runtime would interrupt a call that waits, and let it begin again.
	cmd.Env = append(cmd.Environ(), "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var said strings.Builder
	watching := make(chan error, 1)
	watched := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		number, is := strings.CutPrefix(lines.Text(), announcement)
		if !is || watched {
			said.WriteString(lines.Text() + "\n")
			continue
		}
		listener, err := listenerOf(cmd.Process.Pid, number)
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return "", err
		}
		watched = true
		go func() {
			watching <- watch(listener, cmd.Process.Pid, judge)
			_ = unix.Close(listener)
		}()
	}
	if !watched {
		err := cmd.Wait()
		return said.String(), errors.Join(errors.New("the process did not call Confine: "+
			said.String()+errs.String()), err)
	}
	// Waited for after its calls: until then its memory and descriptors can be read.
	if failed := <-watching; failed != nil {
		_ = cmd.Process.Kill()
		err = failed
	}
	err = errors.Join(err, cmd.Wait()) // afterwards nothing more is written to errs
	return said.String() + errs.String(), err
}

// listenerOf takes the descriptor of the notifications from the process.
func listenerOf(pid int, number string) (int, error) {
	fd, err := strconv.Atoi(number)
	if err != nil {
		return 0, err
	}
	of, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("pidfd_open: %w", err)
	}
	defer func() { _ = unix.Close(of) }()
	listener, err := unix.PidfdGetfd(of, fd, 0)
	if err != nil {
		return 0, fmt.Errorf("pidfd_getfd: %w", err)
	}
	return listener, nil
}

// A notification and its response, as in linux/seccomp.h.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	response struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}
)

const (
	ioctlReceive = 0xc0502100
	ioctlSend    = 0xc0182101
	flagContinue = 1
)

// watch answers the calls of a process until it has ended.
func watch(listener, pid int, judge func(n int, c Call) Verdict) error {
	calls := watchedCalls()
	for n := 1; ; n++ {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents != 0 {
				return nil // nobody has the filter: the process has ended
			}
			n--
			continue
		}
		var got notification
		switch errno := ioctl(listener, ioctlReceive, unsafe.Pointer(&got)); errno {
		case 0:
		case unix.EINTR, unix.ENOENT: // the call is gone
			n--
			continue
		default:
			return fmt.Errorf("receive: %w", errno)
		}
		w := calls[uint32(got.nr)]
		answer := response{id: got.id, flags: flagContinue}
		verdict := Continue
		if path := pathOf(pid, w, &got); strings.HasPrefix(path, "anon_inode:") {
			n-- // the runtime wakes a thread
		} else {
			verdict = judge(n, Call{Name: w.name, Path: path, Grows: w.grows})
		}
		switch verdict {
		case Kill:
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				return err
			}
			continue // unanswered
		case Full:
			answer.flags, answer.err = 0, -int32(unix.ENOSPC)
		}
		if errno := ioctl(listener, ioctlSend, unsafe.Pointer(&answer)); errno != 0 &&
			errno != unix.ENOENT {
			return fmt.Errorf("answer: %w", errno)
		}
	}
}

func ioctl(fd int, what uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), what, uintptr(arg))
	return errno
}

// pathOf returns the file of a call, as well as it is known.
func pathOf(pid int, w watched, n *notification) string {
	if w.path == noPath {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, n.args[0]))
		return path
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return ""
	}
	defer func() { _ = memory.Close() }()
	b := make([]byte, 512)
	read, _ := memory.ReadAt(b, int64(n.args[w.path]))
	path, _, _ := bytes.Cut(b[:read], []byte{0})
	return string(path)
}
