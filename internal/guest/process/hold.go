package process

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A holder stops processes by signal if the kernel cannot freeze a group. The processes must not
// notice: a parent is stopped before its children and continues after them, so that all children
// run when it asks for them.
type holder struct {
	proc procFS

	mu   sync.Mutex
	held []int // in the order of stopping
}

// Pause between checks of processes that are not stopped yet.
const holdPause = 500 * time.Microsecond

// hold stops every process except the caller, which must be PID 1. Otherwise it would stop every
// process of the host.
func (h *holder) hold(ctx context.Context) error {
	if os.Getpid() != 1 {
		return errors.New("the agent is not the first process")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := map[int]int{} // number of checks at which a process was in an uninterruptible wait
	for {
		procs, err := h.processes()
		if err != nil {
			return err
		}
		moving := false
		for _, p := range procs {
			switch p.state {
			case 'T', 'Z', 'X':
				continue
			case 'D':
				// It waits for a stopped process: vfork(2).
				if waiting[p.pid]++; waiting[p.pid] > 10 && slices.Contains(h.held, p.pid) {
					continue
				}
			}
			moving = true
			// Sent again while the process runs: in gVisor, execve(2) of a program drops a pending
			// stop (task_exec.go, endGroupStopLocked).
			if err := syscall.Kill(p.pid, syscall.SIGSTOP); err == nil &&
				!slices.Contains(h.held, p.pid) {
				h.held = append(h.held, p.pid)
			}
		}
		if !moving {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("some processes could not be stopped")
		case <-time.After(holdPause):
		}
	}
}

// release continues the processes that hold has stopped.
func (h *holder) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pid := range slices.Backward(h.held) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	h.held = nil
}

// A procState is a process in /proc/PID/stat (proc(5)).
type procState struct {
	pid, parent, depth int
	state              byte
}

// processes returns all processes except PID 1, parents before their children.
func (h *holder) processes() ([]procState, error) {
	pids, err := h.proc.processes()
	if err != nil {
		return nil, err
	}
	byPID := map[int]*procState{}
	for _, pid := range pids {
		if pid == 1 {
			continue
		}
		var buf [512]byte
		n, err := h.proc.read(strconv.Itoa(pid)+"/stat", buf[:])
		if err != nil {
			continue // the process has ended
		}
		if p, ok := parseStat(string(buf[:n])); ok {
			p.pid = pid
			byPID[pid] = &p
		}
	}
	out := make([]procState, 0, len(byPID))
	for _, p := range byPID {
		for at := byPID[p.parent]; at != nil && p.depth <= len(byPID); at = byPID[at.parent] {
			p.depth++
		}
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b procState) int {
		if a.depth != b.depth {
			return a.depth - b.depth
		}
		return a.pid - b.pid
	})
	return out, nil
}

// parseStat parses a process's state and parent. Its name may contain any bytes.
func parseStat(text string) (p procState, ok bool) {
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 2 || len(f[0]) != 1 {
		return p, false
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return p, false
	}
	return procState{parent: parent, state: f[0][0]}, true
}
