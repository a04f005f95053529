package process

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// growth is the assumed maximum rate at which processes use up memory, in bytes per second: it
	// determines how long the free memory lasts.
	growth      = 4 << 30
	leastPause  = 5 * time.Millisecond
	longestLook = 120 * time.Millisecond
	deathWait   = 2 * time.Second
	// The memory of an ended process is released after some time, longer if the host is busy: while
	// the use grows by no more than this, nothing else is killed until the memory is released, or
	// for at most that time.
	settleTime   = 10 * time.Second
	settleGrowth = 16 << 20 // bytes
	// The kernel counts late: gVisor scans for pages that processes have committed, and throttles its scans. What
	// the use grows in this time after the end of a process may still be that process's.
	countLag = time.Second
)

// EnforceMemory enforces the groups' memory limit on a kernel that only counts memory, such as
// gVisor's: while processes run, it checks their use, and above the limit it kills the largest
// process, as Linux does. Killed processes are reported like those that Linux kills. Call it before
// the first process is started; it runs as long as the agent.
func (g *Groups) EnforceMemory() {
	g.enforce = make(chan struct{}, 1)
	go func() {
		for range g.enforce { // a process was started
			for {
				pause, again := g.enforceOnce()
				if !again {
					break
				}
				time.Sleep(pause)
			}
		}
	}()
}

// enforceOnce checks once. again reports whether there are processes.
func (g *Groups) enforceOnce() (pause time.Duration, again bool) {
	if g.idle() {
		return 0, false
	}
	used, err := g.memoryUsed()
	limit := g.memoryMax.Load()
	if err != nil || limit <= 0 {
		return longestLook, true
	}
	if room := limit - used; room >= 0 {
		return min(longestLook,
			max(leastPause, time.Duration(float64(room)/growth*float64(time.Second)))), true
	}
	if freed, ok := g.killLargest(); ok {
		// It may have grown between the look at the use and its end: that is not another's growth.
		if after, err := g.memoryUsed(); err == nil {
			used = max(used, after)
		}
		g.settle(used, freed)
	}
	return leastPause, true
}

// idle reports whether no process runs and none is being started. A group that is taken is empty until its
// process is forked, and no signal follows the fork: the checks must not end before it.
func (g *Groups) idle() bool {
	g.mu.Lock()
	taken := len(g.live) > len(g.full)
	g.mu.Unlock()
	return !taken && (&cgroup{dir: g.dir}).empty()
}

func (g *Groups) memoryUsed() (int64, error) {
	return readNumber(filepath.Join(g.dir, "memory.current"))
}

// settle waits until the memory of a killed process, which had at least freed bytes, is free again.
// It returns early if that is not enough, or if other processes use more and more.
func (g *Groups) settle(before, freed int64) {
	began := time.Now()
	for ; time.Since(began) < settleTime; time.Sleep(leastPause) {
		used, err := g.memoryUsed()
		if time.Since(began) < countLag {
			before = max(before, used)
		}
		if err != nil || used <= g.memoryMax.Load() || used <= before-freed ||
			used > before+settleGrowth {
			return
		}
	}
}

// killLargest kills the process with the most memory, and waits for its end. It returns how many
// bytes the process had, and whether there was one.
func (g *Groups) killLargest() (freed int64, ok bool) {
	g.mu.Lock()
	groups := make([]*cgroup, 0, len(g.live))
	for c := range g.live {
		groups = append(groups, c)
	}
	g.mu.Unlock()
	largest, most := 0, int64(-1)
	var of *cgroup
	for _, c := range groups {
		_ = eachProcess(c.dir, 0, func(pid int) {
			if n := g.residentPages(pid); n > most {
				largest, most, of = pid, n, c
			}
		})
	}
	if of == nil {
		return 0, false
	}
	of.killed.Add(1) // first: the observer of the process's end reads it
	if syscall.Kill(largest, syscall.SIGKILL) != nil {
		of.killed.Add(-1)
		return 0, false
	}
	deadline := time.Now().Add(deathWait)
	for ; time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if g.residentPages(largest) <= 0 {
			break
		}
	}
	return most * int64(os.Getpagesize()), true
}

// residentPages returns the memory of a process (proc(5), statm); -1: no such process.
func (g *Groups) residentPages(pid int) int64 {
	var buf [128]byte
	n, err := g.hold.proc.read(strconv.Itoa(pid)+"/statm", buf[:])
	if err != nil {
		return -1
	}
	f := strings.Fields(string(buf[:n]))
	if len(f) < 2 {
		return -1
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return -1
	}
	return pages
}

func readNumber(path string) (int64, error) {
	var buf [64]byte
	n, err := ReadSmall(path, buf[:])
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(buf[:n]))
	if text == "max" {
		return math.MaxInt64, nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return v, nil
}
