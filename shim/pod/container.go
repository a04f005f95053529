package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/rootfs"
	"turnstone.dev/turnstone/shim/spec"
)

// maxRootFiles bounds the entries of a container's root file system.
const maxRootFiles = 2_000_000

// A Container is a container in the sandbox.
type Container struct {
	pod  *Pod
	ID   string
	spec *spec.Container
	back map[string]string // files of the host, by their paths in the sandbox
}

// Create brings the root file system into the sandbox, with the volumes.
func (p *Pod) Create(ctx context.Context, id string, root rootfs.Root, s *spec.Container) (*Container, error) {
	if err := guest.CheckID(id); err != nil {
		return nil, fmt.Errorf("container %.140q: %w", id, err)
	}
	release, err := p.making.take(ctx, id)
	if err != nil {
		return nil, err
	}
	c := &Container{pod: p, ID: id, spec: s, back: map[string]string{}}
	if err := c.fill(ctx, root); err != nil {
		go func() { // the caller does not wait for the removal, but a container of its name does
			defer release()
			c.discard()
		}()
		return nil, err
	}
	release()
	return c, nil
}

// fill brings into the sandbox what the container needs there.
func (c *Container) fill(ctx context.Context, root rootfs.Root) error {
	p, s := c.pod, c.spec
	if err := c.addRoot(ctx, root); err != nil {
		return err
	}
	if err := c.addVolumes(ctx); err != nil {
		return err
	}
	c.addEtc()
	for key, value := range p.asked.Sysctl {
		if s.Sysctl == nil {
			s.Sysctl = maps.Clone(p.asked.Sysctl)
		}
		s.Sysctl[key] = value
	}
	return p.writeJSON(ctx, guest.File(c.ID, "", guest.FileConfig), s.Container)
}

// names are those of containers whose files are written or removed.
type names struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // closed when it is free
}

// take waits until nobody has the name.
func (n *names) take(ctx context.Context, name string) (release func(), err error) {
	free := make(chan struct{})
	for {
		n.mu.Lock()
		taken := n.taken[name]
		if taken == nil {
			if n.taken == nil {
				n.taken = map[string]chan struct{}{}
			}
			n.taken[name] = free
			n.mu.Unlock()
			return func() {
				n.mu.Lock()
				delete(n.taken, name)
				n.mu.Unlock()
				close(free)
			}, nil
		}
		n.mu.Unlock()
		select {
		case <-taken:
		case <-ctx.Done():
			return nil, fmt.Errorf("container %s is being removed: %w", name, ctx.Err())
		}
	}
}

// discardLimit bounds the removal of a container that nobody waits for.
const discardLimit = 2 * time.Minute

// discard removes what is in the sandbox of a container that was not created.
func (c *Container) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), discardLimit)
	defer cancel()
	_ = c.Remove(ctx) // or it stays until the pod's end
}

// copyIn copies a file tree of the host to the folder dest of the sandbox by a command of the helper,
// guest.CmdUnpack or CmdUpdate; a file gets the name name there.
func (p *Pod) copyIn(ctx context.Context, cmd, source, name, dest string, l rootfs.Limits) error {
	release, err := slot(ctx, p.copies)
	if err != nil {
		return err
	}
	defer release()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := rootfs.Pack(ctx, w, source, name, l)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	_, err = p.helper(ctx, r, cmd, dest)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if perr := <-packed; perr != nil && perr != io.ErrClosedPipe {
		return perr
	}
	return err
}

// Start starts the container's first process.
func (c *Container) Start(ctx context.Context, files IO) (*Process, error) {
	release, err := slot(ctx, c.pod.starts)
	if err != nil {
		return nil, err
	}
	defer release()
	return c.pod.start(ctx, c.ID, "", []string{guest.Program, guest.CmdRun, c.ID},
		c.spec.Terminal, files)
}

// Exec starts another process in the container.
func (c *Container) Exec(ctx context.Context, exec string, p guest.Process,
	files IO) (*Process, error) {
	release, err := slot(ctx, c.pod.starts)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.pod.writeJSON(ctx, guest.File(c.ID, exec, guest.FileConfig), p); err != nil {
		return nil, err
	}
	return c.pod.start(ctx, c.ID, exec, []string{guest.Program, guest.CmdExec, c.ID, exec},
		p.Terminal, files)
}

// Update bounds the container anew.
func (c *Container) Update(ctx context.Context, l guest.Limits) error {
	if err := c.pod.writeJSON(ctx, guest.File(c.ID, "", guest.FileLimits), l); err != nil {
		return err
	}
	_, err := c.pod.helper(ctx, nil, guest.CmdLimit, c.ID)
	return err
}

// Stats returns what the container uses, as the sandbox says.
func (c *Container) Stats(ctx context.Context) (guest.Stats, error) {
	text, err := c.pod.helper(ctx, nil, guest.CmdStats, c.ID)
	if err != nil {
		return guest.Stats{}, err
	}
	s, err := parseStats(text)
	return plausible(s, c.pod.asked.Shape, time.Since(c.pod.began)), err
}

// plausible bounds what the sandbox says by what it can have used, since others are measured and
// ranked by it.
func plausible(s guest.Stats, shape turnstone.Shape, age time.Duration) guest.Stats {
	const mostPIDs = 4 << 20 // PID_MAX_LIMIT of Linux
	s.CPU = min(s.CPU, uint64(shape.CPUs)*uint64(max(age, 0)))
	s.Memory = min(s.Memory, uint64(shape.Memory))
	s.Limit = min(s.Limit, uint64(shape.Memory))
	s.PIDs = min(s.PIDs, mostPIDs)
	return s
}

// parseStats reads the helper's answer.
func parseStats(text string) (s guest.Stats, err error) {
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return guest.Stats{}, fmt.Errorf("the sandbox's answer: %w", err)
	}
	return s, nil
}

// Remove removes the container's files from the sandbox. Its processes have ended.
func (c *Container) Remove(ctx context.Context) error {
	_, err := c.pod.helper(ctx, nil, guest.CmdRemove, c.ID)
	for _, dir := range c.pod.volumes.forget(c.ID) {
		err = errors.Join(err, c.pod.removeFile(ctx, dir, true))
	}
	return err
}

// volumeDir returns the folder of the volume number n.
func volumeDir(n int) string { return path.Join(guest.Volumes, fmt.Sprint(n)) }
