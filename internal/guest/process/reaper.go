package process

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Reaper starts processes and collects their exit statuses. start calls fork, and the returned
// channel yields the status of the process once. trace does the same for a process that is traced
// (ptrace(2)); stops yields its stops, and is closed before its status is there.
type Reaper interface {
	start(fork func() (pid int, err error)) (int, <-chan syscall.WaitStatus, error)
	trace(fork func() (pid int, err error)) (pid int, stops, status <-chan syscall.WaitStatus,
		err error)
}

// maxStops is the number of a process's stops that nobody has taken yet: a process continues only
// after its last one was taken. More are dropped.
const maxStops = 4

// directReaper waits for each process separately. It serves an agent that is not PID 1 and has no
// orphans to reap.
type directReaper struct{}

func (r directReaper) start(fork func() (int, error)) (int, <-chan syscall.WaitStatus, error) {
	pid, _, ch, err := r.trace(fork)
	return pid, ch, err
}

func (directReaper) trace(fork func() (int, error)) (pid int, stops,
	status <-chan syscall.WaitStatus, err error) {
	if pid, err = fork(); err != nil {
		return 0, nil, nil, err
	}
	c := newChild()
	go func() {
		var ws syscall.WaitStatus
		for {
			_, err := syscall.Wait4(pid, &ws, 0, nil)
			if err != syscall.EINTR && (err != nil || !c.stopped(ws)) {
				break
			}
		}
		c.ended(ws)
	}()
	return pid, c.stops, c.status, nil
}

// A child is where the waiters of a process learn of it.
type child struct{ stops, status chan syscall.WaitStatus }

func newChild() *child {
	return &child{make(chan syscall.WaitStatus, maxStops), make(chan syscall.WaitStatus, 1)}
}

// stopped passes on ws if it is a stop.
func (c *child) stopped(ws syscall.WaitStatus) bool {
	if !ws.Stopped() {
		return false
	}
	select {
	case c.stops <- ws:
	default:
	}
	return true
}

func (c *child) ended(ws syscall.WaitStatus) {
	close(c.stops)
	c.status <- ws
}

// initReaper is the reaper of a PID 1: a single loop waits for every child, including orphans from
// the kernel, so that each status reaches the right waiter. A process is forked and registered
// under the lock that the loop holds while it collects, so an early exit cannot be missed.
type initReaper struct {
	mu    sync.Mutex
	own   map[int]*child
	child *sync.Cond // signaled when there may be a child to wait for
}

// NewInitReaper returns the reaper of a PID 1. Its loop ends only with the process.
func NewInitReaper() Reaper {
	r := &initReaper{own: make(map[int]*child)}
	r.child = sync.NewCond(&r.mu)
	go r.loop()
	return r
}

func (r *initReaper) start(fork func() (int, error)) (int, <-chan syscall.WaitStatus, error) {
	pid, _, ch, err := r.trace(fork)
	return pid, ch, err
}

func (r *initReaper) trace(fork func() (int, error)) (pid int, stops,
	status <-chan syscall.WaitStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pid, err = fork(); err != nil {
		return 0, nil, nil, err
	}
	c := newChild()
	r.own[pid] = c
	r.child.Signal()
	return pid, c.stops, c.status, nil
}

func (r *initReaper) loop() {
	for {
		// WNOWAIT leaves the child a zombie, so that it is collected under the lock.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		r.mu.Lock()
		if err == unix.ECHILD && len(r.own) == 0 {
			r.child.Wait()
		}
		r.collect()
		r.mu.Unlock()
	}
}

// collect takes all available statuses. r.mu is held.
func (r *initReaper) collect() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if c := r.own[pid]; c != nil && !c.stopped(ws) {
			delete(r.own, pid)
			c.ended(ws)
		}
	}
}
