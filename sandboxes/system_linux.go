//go:build !turnstone_client

package sandboxes

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// rightsSpace is the size of a control message with one descriptor.
var rightsSpace = unix.CmsgSpace(4)

// rightsOf returns the control message that sends a file.
func rightsOf(f *os.File) []byte { return unix.UnixRights(int(f.Fd())) }

// descriptors returns the descriptors of a control message, which are not inherited by later
// programs.
func descriptors(rights []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var all []int
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			all = append(all, fd)
		}
	}
	return all
}

// connPair returns two ends of a stream.
func connPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, turnstone.NewError("sandbox.dial", turnstone.KindUnavailable, "socketpair",
			err)
	}
	mine := os.NewFile(uintptr(fds[0]), "forward")
	defer closeFile(mine)
	conn, err := net.FileConn(mine)
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return conn, os.NewFile(uintptr(fds[1]), "forward"), nil
}

// ownSession starts a process in a session of its own, so that it survives its terminal.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// lockFolder takes the lock of a folder if it is free.
func lockFolder(d *os.File) (bool, error) {
	err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return err == nil, err
}
