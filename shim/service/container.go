package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"

	"turnstone.dev/turnstone/shim/spec"
)

// Bounds of a pod.
const (
	maxContainers = 256
	maxExecs      = 256 // of a container, at once
)

// A container is a task.
type container struct {
	service    *Service
	id, bundle string
	spec       *spec.Container
	pod        group // nil: not created; of the service's mutex
	first      *process

	cancel  context.CancelFunc // ends its creation
	made    chan struct{}      // closed when the creation is over
	leaving bool               // it is being deleted; of the service's mutex
	gone    chan struct{}      // closed when another may have its ID

	mu    sync.Mutex
	execs map[string]*process
}

// newContainer returns a container that a request describes; cancel ends its creation.
func (s *Service) newContainer(r *taskAPI.CreateTaskRequest, cancel context.CancelFunc) *container {
	c := &container{service: s, id: r.GetID(), bundle: r.GetBundle(), execs: map[string]*process{},
		cancel: cancel, made: make(chan struct{}), gone: make(chan struct{})}
	c.first = newProcess(c, "", r.GetStdin(), r.GetStdout(), r.GetStderr(), r.GetTerminal())
	return c
}

// reserve adds a container that is about to be made. It waits for the end of one that is deleted.
func (s *Service) reserve(ctx context.Context, c *container) error {
	for {
		before, err := s.tryReserve(c)
		if before == nil {
			return err
		}
		select {
		case <-before.gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) tryReserve(c *container) (before *container, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch old := s.containers[c.id]; {
	case s.ended:
		return nil, fmt.Errorf("the sandbox has ended: %w", errdefs.ErrFailedPrecondition)
	case old != nil && old.leaving:
		return old, nil
	case old != nil:
		return nil, fmt.Errorf("container %s: %w", c.id, errdefs.ErrAlreadyExists)
	case len(s.containers) >= maxContainers:
		return nil, fmt.Errorf("a pod has at most %d containers: %w", maxContainers,
			errdefs.ErrResourceExhausted)
	}
	s.containers[c.id] = c
	return nil, nil
}

// creating returns a container whose creation has begun.
func (s *Service) creating(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// leave marks a container as one that is being deleted, unless another deletion has.
func (s *Service) leave(c *container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := c.leaving
	c.leaving = true
	return !was
}

func (s *Service) forget(c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, c.id)
	close(c.gone)
}

// find returns a container and its process; exec is empty for the first.
func (s *Service) find(id, exec string) (*container, *process, error) {
	s.mu.Lock()
	c := s.containers[id]
	created := c != nil && c.pod != nil && !c.leaving
	s.mu.Unlock()
	if !created {
		return nil, nil, fmt.Errorf("container %.140s: %w", id, errdefs.ErrNotFound)
	}
	if exec == "" {
		return c, c.first, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.execs[exec]; p != nil {
		return c, p, nil
	}
	return nil, nil, fmt.Errorf("exec %.140s: %w", exec, errdefs.ErrNotFound)
}

func (c *container) add(p *process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.execs[p.exec] != nil:
		return fmt.Errorf("exec %s: %w", p.exec, errdefs.ErrAlreadyExists)
	case len(c.execs) >= maxExecs:
		return fmt.Errorf("a container has at most %d execs at once: %w", maxExecs,
			errdefs.ErrResourceExhausted)
	}
	c.execs[p.exec] = p
	return nil
}

// remove removes an exec, unless it was removed already.
func (c *container) remove(p *process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.execs[p.exec] == p
	if was {
		delete(c.execs, p.exec)
	}
	return was
}

// retireAll ends processes that were not started, for who waits for them.
func (c *container) retireAll() {
	c.first.retire(killed)
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.execs))
	c.mu.Unlock()
	for _, p := range all {
		p.retire(killed)
	}
}
