//go:build !turnstone_client

package subprocess

import (
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec marks every descriptor of this process from 3 on as close-on-exec. Go marks its own
// descriptors, but a process may have inherited others, and a C library may open others.
// Descriptors in exec.Cmd's ExtraFiles are still inherited. Start calls CloseOnExec before each
// start; a program calls it once when it starts.
func CloseOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeOnExecEach()
}

// closeOnExecEach marks the descriptors individually, for Linux before 5.11.
func closeOnExecEach() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= 3 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
