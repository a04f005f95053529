package service

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/pod"
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
	pod        *pod.Container // nil: not created; of the service's mutex
	first      *process

	cancel context.CancelFunc // ends its creation
	made   chan struct{}      // closed when the creation is over

	mu    sync.Mutex
	execs map[string]*process
}

// reserve adds a container that is about to be made.
func (s *Service) reserve(c *container) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.containers[c.id] != nil:
		return fmt.Errorf("container %s: %w", c.id, errdefs.ErrAlreadyExists)
	case len(s.containers) >= maxContainers:
		return fmt.Errorf("a pod has at most %d containers: %w", maxContainers,
			errdefs.ErrResourceExhausted)
	}
	s.containers[c.id] = c
	return nil
}

// creating returns a container whose creation has begun.
func (s *Service) creating(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

func (s *Service) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, id)
}

// find returns a container and its process; exec is empty for the first.
func (s *Service) find(id, exec string) (*container, *process, error) {
	s.mu.Lock()
	c := s.containers[id]
	created := c != nil && c.pod != nil
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

func (c *container) remove(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.execs, p.exec)
}

// A process is the first of a container, or an exec.
type process struct {
	of                    *container
	exec                  string
	spec                  guest.Process // of an exec
	stdin, stdout, stderr string
	terminal              bool
	over                  chan struct{} // closed at its end
	told                  chan struct{} // closed when its start was announced
	begun                 chan struct{} // closed when its start has succeeded or failed
	insist                sync.Once     // after SIGKILL

	mu      sync.Mutex
	started bool
	cancel  context.CancelFunc // ends its start
	running *pod.Process
	files   *files
	noInput bool // the input was ended
	code    uint32
	at      time.Time
}

func newProcess(c *container, exec, stdin, stdout, stderr string, terminal bool) *process {
	return &process{of: c, exec: exec, stdin: stdin, stdout: stdout, stderr: stderr,
		terminal: terminal, over: make(chan struct{}), told: make(chan struct{}),
		begun: make(chan struct{})}
}

// start starts the process and watches for its end.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	if p.started {
		p.mu.Unlock()
		return fmt.Errorf("it was started already: %w", errdefs.ErrFailedPrecondition)
	}
	p.started = true
	ctx, p.cancel = context.WithCancel(ctx)
	p.mu.Unlock()
	defer close(p.begun)
	defer p.cancel()
	f, err := openFiles(p.stdin, p.stdout, p.stderr)
	if first := p.of.first; err == nil && p.exec != "" && !first.runs() {
		f.close()
		err = fmt.Errorf("container %s does not run: %w", p.of.id, errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		p.mu.Lock()
		p.files = f
		if p.noInput {
			f.endIn()
		}
		p.mu.Unlock()
		var run *pod.Process
		if p.exec == "" {
			run, err = p.of.pod.Start(ctx, f.io())
		} else {
			run, err = p.of.pod.Exec(ctx, p.exec, p.spec, f.io())
		}
		if err == nil {
			p.mu.Lock()
			p.running = run
			p.mu.Unlock()
			go p.watch(run, f)
			return nil
		}
		f.close()
	}
	p.finish(255, time.Now())
	return err
}

// announce says that the start of the process was announced: its end follows.
func (p *process) announce() { close(p.told) }

// watch waits for the end of the process.
func (p *process) watch(run *pod.Process, f *files) {
	<-run.Ended()
	f.close()
	code, at := run.Exit()
	s := p.of.service
	if p.exec == "" {
		if _, err := s.running(); err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err := p.of.pod.CopyBack(ctx); err != nil {
				log.G(s.ctx).WithError(err).Warn("a file was not copied back")
			}
			if stats, err := p.of.pod.Stats(ctx); err == nil && stats.OOM > 0 {
				s.send(runtime.TaskOOMEventTopic, &eventstypes.TaskOOM{ContainerID: p.of.id})
			}
			cancel()
		}
	}
	<-p.told
	id := p.of.id
	if p.exec != "" {
		id = p.exec
	}
	p.finish(uint32(code), at)
	s.send(runtime.TaskExitEventTopic, &eventstypes.TaskExit{ContainerID: p.of.id, ID: id,
		Pid: self(), ExitStatus: uint32(code), ExitedAt: timestamppb.New(at)})
}

func (p *process) finish(code uint32, at time.Time) {
	p.mu.Lock()
	p.code, p.at = code, at
	p.mu.Unlock()
	close(p.over)
}

// state returns the state of the process in the words of the interface.
func (p *process) state() (task.Status, uint32, *timestamppb.Timestamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.over:
		return task.Status_STOPPED, p.code, timestamppb.New(p.at)
	default:
	}
	if p.running == nil {
		return task.Status_CREATED, 0, nil
	}
	return task.Status_RUNNING, 0, nil
}

// runs reports whether the process has started and has not ended.
func (p *process) runs() bool {
	p.mu.Lock()
	run := p.running
	p.mu.Unlock()
	if run == nil {
		return false
	}
	select {
	case <-run.Ended():
		return false
	default:
		return true
	}
}

// retire ends a process that was not started, and reports whether it may be forgotten.
func (p *process) retire() bool {
	p.mu.Lock()
	if !p.started {
		p.started = true
		p.mu.Unlock()
		p.finish(128+uint32(syscall.SIGKILL), time.Now())
		return true
	}
	p.mu.Unlock()
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// cancelStart ends the start of a process that is under way, if a deadly signal asks for it, and
// returns the process if it runs nevertheless.
func (p *process) cancelStart(ctx context.Context, sig syscall.Signal) (*pod.Process, error) {
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
		return nil, nil
	}
	p.cancel()
	select {
	case <-p.begun:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running, nil
}

// kill sends a signal. A process that has not started ends with it, if it is a deadly one.
func (p *process) kill(ctx context.Context, sig syscall.Signal) error {
	p.mu.Lock()
	run, started := p.running, p.started
	if !started && (sig == syscall.SIGKILL || sig == syscall.SIGTERM) {
		p.started = true
		p.mu.Unlock()
		p.finish(128+uint32(sig), time.Now())
		return nil
	}
	p.mu.Unlock()
	if started && run == nil {
		var err error
		if run, err = p.cancelStart(ctx, sig); err != nil {
			return err
		}
	}
	select {
	case <-p.over:
		return fmt.Errorf("it has ended: %w", errdefs.ErrNotFound)
	default:
	}
	if run == nil {
		return fmt.Errorf("it has not started: %w", errdefs.ErrFailedPrecondition)
	}
	if sig == syscall.SIGKILL {
		// The sandbox may not obey; whoever waits for the process waits for its end.
		p.insist.Do(func() { go p.endOrSandboxEnds() })
	}
	sent := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.of.service.killLimit())
		defer cancel()
		sent <- run.Kill(ctx, sig)
	}()
	t := time.NewTimer(signalLimit)
	defer t.Stop()
	select {
	case err := <-sent:
		return err
	case <-p.over:
		return nil
	case <-t.C: // it is on its way; a caller that waits for its effect has a bound, and SIGKILL
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signalLimit bounds the wait for the sandbox's answer to a signal.
const signalLimit = 5 * time.Second

// endOrSandboxEnds waits for the end of a process that was killed, and ends the sandbox if that
// takes too long.
func (p *process) endOrSandboxEnds() {
	s := p.of.service
	t := time.NewTimer(s.killLimit())
	defer t.Stop()
	select {
	case <-p.over:
	case <-s.stopped:
	case <-t.C:
		log.G(s.ctx).Errorf("a process of container %s does not end: the sandbox is ended", p.of.id)
		s.end()
	}
}

func (s *Service) killLimit() time.Duration {
	return time.Duration(s.settings.KillLimit) * time.Second
}

func (p *process) resize(ctx context.Context, width, height uint32) error {
	p.mu.Lock()
	run := p.running
	p.mu.Unlock()
	if run == nil {
		return nil
	}
	return run.Resize(ctx, width, height)
}

func (p *process) closeStdin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noInput = true; p.files != nil {
		p.files.endIn()
	}
}
