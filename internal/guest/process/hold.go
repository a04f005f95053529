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

// A holder stops processes by signal, where the kernel cannot freeze a group. Nobody
// may see that: a parent is stopped before its children and goes on after them, so
// that when it asks for its children, all of them run.
type holder struct {
	proc procFS

	mu   sync.Mutex
	held []int // in the order in which they were stopped
}

// Pauses between looks at processes that do not stand still yet.
const holdPause = 500 * time.Microsecond

// hold stops every process but the caller, which is PID 1. Anywhere else that would
// be every process of the machine.
func (h *holder) hold(ctx context.Context) error {
	if os.Getpid() != 1 {
		return errors.New("the agent is not the first process")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := map[int]int{} // looks that a process was in a wait that no signal ends
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
				// It waits for something that a stopped process does: vfork(2).
				if waiting[p.pid]++; waiting[p.pid] > 10 && slices.Contains(h.held, p.pid) {
					continue
				}
			}
			moving = true
			// Sent again as long as it runs: in gVisor, execve(2) of a program drops a stop
			// that came before it was over (task_exec.go, endGroupStopLocked).
			if err := syscall.Kill(p.pid, syscall.SIGSTOP); err == nil && !slices.Contains(h.held, p.pid) {
				h.held = append(h.held, p.pid)
			}
		}
		if !moving {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("some processes do not stand still")
		case <-time.After(holdPause):
		}
	}
}

// release lets those go on that hold has stopped.
func (h *holder) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pid := range slices.Backward(h.held) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	h.held = nil
}

// A procState is a process, as /proc/PID/stat has it (proc(5)).
type procState struct {
	pid, parent, depth int
	state              byte
}

// processes returns all processes but PID 1, parents before their children.
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
			continue // it has gone
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

// parseStat reads a process's state and parent. Its name may hold anything.
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
