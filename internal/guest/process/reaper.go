package process

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Reaper starts processes and collects their exit statuses. start calls fork, and the returned
// channel yields the status of the process once.
type Reaper interface {
	start(fork func() (pid int, err error)) (int, <-chan syscall.WaitStatus, error)
}

// directReaper waits for each process separately. It serves an agent that is not PID 1 and has no
// orphans to reap.
type directReaper struct{}

func (directReaper) start(fork func() (int, error)) (int, <-chan syscall.WaitStatus, error) {
	pid, err := fork()
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	go func() {
		var ws syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
				break
			}
		}
		ch <- ws
	}()
	return pid, ch, nil
}

// initReaper is the reaper of a PID 1: a single loop waits for every child, including orphans from
// the kernel, so that each status reaches the right waiter. A process is forked and registered
// under the lock that the loop holds while it collects, so an early exit cannot be missed.
type initReaper struct {
	mu    sync.Mutex
	own   map[int]chan syscall.WaitStatus
	child *sync.Cond // signaled when there may be a child to wait for
}

// NewInitReaper returns the reaper of a PID 1. Its loop ends only with the process.
func NewInitReaper() Reaper {
	r := &initReaper{own: make(map[int]chan syscall.WaitStatus)}
	r.child = sync.NewCond(&r.mu)
	go r.loop()
	return r
}

func (r *initReaper) start(fork func() (int, error)) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	r.own[pid] = ch
	r.child.Signal()
	return pid, ch, nil
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
		if ch, ok := r.own[pid]; ok {
			delete(r.own, pid)
			ch <- ws
		}
	}
}
