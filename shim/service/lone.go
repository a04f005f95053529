package service

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/pod"
	"turnstone.dev/turnstone/shim/spec"
)

// place returns the sandbox that a new container comes into, or nil for a container without a pod,
// which is the shim's only one. containerd asks for the pod's sandbox before its containers.
func (s *Service) place(id string) (machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.pod != nil && !s.ended && s.lone == "":
		return s.pod, nil
	case s.asked == nil && s.lone == "" && !s.ended:
		s.lone = id
		return nil, nil
	case s.lone != "":
		return nil, fmt.Errorf("the sandbox is that of container %.140s alone: %w", s.lone,
			errdefs.ErrFailedPrecondition)
	}
	return nil, errNotRunning
}

// single reports whether the shim serves a container without a pod.
func (s *Service) single() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lone != ""
}

// adopt reads what the container without a pod asks of its sandbox, and returns the folder of its
// root file system if it names one.
func (s *Service) adopt(id string, config []byte) (root string, err error) {
	l, err := spec.ParseLone(config, s.settings.bounds())
	if err != nil {
		return "", err
	}
	own, host := s.settings.hostNetwork != "", s.settings.hostNetwork
	if !own {
		host = identity(ownNetwork)
	}
	switch {
	case l.Network == "" && own:
		l.Network = ownNetwork
	case l.Network != "" && identity(l.Network) == host:
		return "", &spec.Refusal{Field: "linux.namespaces", Why: "the host's namespace (network)"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.asked, s.netns = id, l.Pod, l.Network
	return l.Root, nil
}

// ownNetwork is the shim's network namespace, which is the container's own if the shim serves one
// without a pod: plug-ins for networks find it by the number of the task's process.
const ownNetwork = "/proc/self/ns/net"

// identity returns what tells the namespace at path from any other.
func identity(path string) string {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// A loneGroup is a container without a pod. Its sandbox starts and is filled when the container
// starts, since its network is made after its creation, and ends with it.
type loneGroup struct {
	s    *Service
	c    *container
	fill func(context.Context, machine) (group, error)

	mu   sync.Mutex
	made group // nil: not started
}

var errNotStarted = fmt.Errorf("the container has not started: %w", errdefs.ErrFailedPrecondition)

// Start implements group.
func (g *loneGroup) Start(ctx context.Context, files pod.IO) (running, error) {
	run, err := g.start(ctx, files)
	if err != nil {
		go g.s.end() // which waits for this start
	}
	return run, err
}

func (g *loneGroup) start(ctx context.Context, files pod.IO) (running, error) {
	if _, err := g.s.start(ctx); err != nil {
		return nil, fmt.Errorf("the container's sandbox: %w", err)
	}
	p, err := g.s.running()
	if err != nil {
		return nil, err
	}
	made, err := g.fill(ctx, p)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.made = made
	g.mu.Unlock()
	return made.Start(ctx, files)
}

func (g *loneGroup) get() (group, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.made == nil {
		return nil, errNotStarted
	}
	return g.made, nil
}

// Exec implements group.
func (g *loneGroup) Exec(ctx context.Context, exec string, p guest.Process, files pod.IO) (
	running, error) {
	made, err := g.get()
	if err != nil {
		return nil, err
	}
	return made.Exec(ctx, exec, p, files)
}

// Update implements group.
func (g *loneGroup) Update(ctx context.Context, l guest.Limits) error {
	made, err := g.get()
	if err != nil {
		return err
	}
	return made.Update(ctx, l)
}

// Stats implements group. A container that has not started uses nothing.
func (g *loneGroup) Stats(ctx context.Context) (guest.Stats, error) {
	made, err := g.get()
	if err != nil {
		return guest.Stats{}, nil
	}
	return made.Stats(ctx)
}

// CopyBack implements group.
func (g *loneGroup) CopyBack(ctx context.Context) error {
	made, err := g.get()
	if err != nil {
		return err
	}
	return made.CopyBack(ctx)
}

// Remove implements group: nothing is left after the sandbox.
func (g *loneGroup) Remove(context.Context) error { return nil }

// endStart ends the start of a container without a pod that is under way when its sandbox has ended:
// the root file system that it has mounted would stay after the shim's end.
func (c *container) endStart(limit <-chan time.Time) {
	if !c.service.single() {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = c.first.cancelStart(ctx, syscall.SIGKILL)
	}()
	select {
	case <-over:
	case <-limit:
	}
}
