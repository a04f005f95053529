package subprocess

import (
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec keeps every descriptor from 3 on that this process has from getting into the
// programs that it starts. Go opens none that would, but a process may have inherited some
// from who started it, and a C library may open them. exec.Cmd's ExtraFiles are passed on
// all the same. Start calls it before each start, a program calls it once when it begins.
func CloseOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeOnExecEach()
}

// closeOnExecEach does the same one by one, for Linux before 5.11.
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
