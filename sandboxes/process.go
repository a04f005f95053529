package sandboxes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// A Process identifies a process permanently: PIDs are reused, but not with the same start time.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the machine's boot (proc(5), stat, field 22)
}

// thisProcess returns the calling process.
func thisProcess() (Process, error) {
	start, err := startTime(os.Getpid())
	return Process{PID: os.Getpid(), Start: start}, err
}

// startTime reads field 22 of /proc/PID/stat. The second field is the program's name in parentheses
// and may contain any bytes.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(b)
}

func parseStat(b []byte) (uint64, error) {
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const third = 3 // fields begins with the line's third field
	if len(fields) <= 22-third {
		return 0, errors.New("/proc/PID/stat has an unknown format")
	}
	if state := fields[0]; len(state) == 1 && (state[0] == 'Z' || state[0] == 'X') {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(string(fields[22-third]), 10, 64)
}

// open returns a handle (a pidfd, if the kernel supports them) of p; nil if p has ended.
func (p Process) open() *os.Process {
	if p.PID <= 1 {
		return nil
	}
	h, err := os.FindProcess(p.PID)
	if err != nil {
		return nil
	}
	// Checked after opening the handle, so that the answer refers to the handle's process.
	if start, err := startTime(p.PID); err != nil || start != p.Start {
		_ = h.Release()
		return nil
	}
	return h
}

// alive reports whether p runs.
func (p Process) alive() bool {
	h := p.open()
	if h == nil {
		return false
	}
	_ = h.Release()
	return true
}

// signal sends sig to p; it is not an error if p has ended.
func (p Process) signal(sig syscall.Signal) error {
	h := p.open()
	if h == nil {
		return nil
	}
	defer h.Release()
	if err := h.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
