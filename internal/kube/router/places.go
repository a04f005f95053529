package router

import (
	"sync"

	"turnstone.dev/turnstone/internal/kube/steady"
)

// Bounds of all callers together. Who reaches the router needs no token, and the operator is in the same
// process: a namespace has at most half of what the others leave.
const (
	maxRequests = 1024
	maxKept     = 32 << 20 // bytes of answers that are collected before they are sent
)

// shares count something that namespaces take of one store. The zero value has nothing taken. They are
// safe for concurrent use.
type shares struct {
	most int

	mu  sync.Mutex
	sum int
	of  map[string]int
}

// take takes some for a namespace, and reports whether there was enough.
func (s *shares) take(namespace string, some int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !steady.Fits(s.of[namespace]+some-1, s.sum+some-1, s.most) {
		return false
	}
	if s.of == nil {
		s.of = map[string]int{}
	}
	s.of[namespace] += some
	s.sum += some
	return true
}

// leave gives back what was taken.
func (s *shares) leave(namespace string, some int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum -= some
	if s.of[namespace] -= some; s.of[namespace] == 0 {
		delete(s.of, namespace)
	}
}

// kept is what one call has taken of the bytes.
type kept struct {
	of        *shares // nil: unbounded
	namespace string

	mu  sync.Mutex // both outputs of a command take
	sum int
}

func (k *kept) take(some int) bool {
	if k.of == nil || some <= 0 {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.of.take(k.namespace, some) {
		return false
	}
	k.sum += some
	return true
}

func (k *kept) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of != nil && k.sum > 0 {
		k.of.leave(k.namespace, k.sum)
		k.sum = 0
	}
}
