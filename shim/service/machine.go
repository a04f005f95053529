package service

import (
	"context"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/pod"
	"turnstone.dev/turnstone/shim/rootfs"
	"turnstone.dev/turnstone/shim/spec"
)

// A machine is the running sandbox of a pod.
type machine interface {
	// Create brings a container into it.
	Create(ctx context.Context, id string, root rootfs.Root, c *spec.Container) (group, error)
	Done() <-chan struct{}
	Err() error
	Substrate() string
	Used() turnstone.Used
	Close() error
}

// A group is a container in a machine.
type group interface {
	Start(ctx context.Context, files pod.IO) (running, error)
	Exec(ctx context.Context, exec string, p guest.Process, files pod.IO) (running, error)
	Update(ctx context.Context, l guest.Limits) error
	Stats(ctx context.Context) (guest.Stats, error)
	CopyBack(ctx context.Context) error
	Remove(ctx context.Context) error
}

// A running process of a group.
type running interface {
	Ended() <-chan struct{}
	Exit() (code int, at time.Time)
	OutOfMemory() bool
	Kill(ctx context.Context, sig syscall.Signal) error
	Resize(ctx context.Context, columns, rows uint32) error
}

// A launcher starts the machine of a pod whose network is that of the namespace at netns.
type launcher func(ctx context.Context, p *spec.Pod, netns string) (machine, error)

// launch starts a sandbox with the settings of the node.
func (s Settings) launch(say func(...any)) launcher {
	group := groupFile() // the shim joins the pod's later
	return func(ctx context.Context, asked *spec.Pod, netns string) (machine, error) {
		p, err := pod.Start(ctx, s.options(say, group), asked, netns)
		if err != nil {
			return nil, err
		}
		return podMachine{p}, nil
	}
}

// podMachine and podGroup return interfaces where package pod returns its types.
type podMachine struct{ *pod.Pod }

func (m podMachine) Create(ctx context.Context, id string, root rootfs.Root, c *spec.Container) (group, error) {
	made, err := m.Pod.Create(ctx, id, root, c)
	if err != nil {
		return nil, err
	}
	return podGroup{made}, nil
}

type podGroup struct{ *pod.Container }

func (g podGroup) Start(ctx context.Context, files pod.IO) (running, error) {
	p, err := g.Container.Start(ctx, files)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (g podGroup) Exec(ctx context.Context, exec string, p guest.Process, files pod.IO) (
	running, error) {
	run, err := g.Container.Exec(ctx, exec, p, files)
	if err != nil {
		return nil, err
	}
	return run, nil
}
