package service

import (
	"sync"
	"syscall"
)

// signals sends the signals of a process to the sandbox. As in a kernel, a signal that waits is not
// sent twice: a flood of one leaves room for others.
type signals struct {
	mu      sync.Mutex
	waiting map[syscall.Signal]*delivery
	last    map[syscall.Signal]*delivery
}

// A delivery is the way of a signal to the process.
type delivery struct {
	done chan struct{}
	err  error // after done
}

// send sends a signal by deliver in the background, after an earlier one of its kind.
func (s *signals) send(sig syscall.Signal, deliver func() error) *delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.waiting[sig]; d != nil {
		return d
	}
	if s.waiting == nil {
		s.waiting, s.last = map[syscall.Signal]*delivery{}, map[syscall.Signal]*delivery{}
	}
	d, before := &delivery{done: make(chan struct{})}, s.last[sig]
	s.waiting[sig] = d
	go func() {
		if before != nil {
			<-before.done
		}
		s.mu.Lock()
		delete(s.waiting, sig)
		s.last[sig] = d
		s.mu.Unlock()
		d.err = deliver()
		close(d.done)
	}()
	return d
}
