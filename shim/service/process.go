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
)

// A process is the first of a container, or an exec.
type process struct {
	of                    *container
	exec                  string
	spec                  guest.Process // of an exec
	stdin, stdout, stderr string
	terminal              bool
	over                  chan struct{} // closed at its end
	said                  chan struct{} // closed when its end was announced, or is not to be
	told                  chan struct{} // closed when its start was announced
	begun                 chan struct{} // closed when its start has succeeded or failed
	insist                sync.Once     // after SIGKILL
	signals               signals
	resizing              chan struct{} // has an entry while the terminal's size is set

	mu      sync.Mutex
	started bool
	cancel  context.CancelFunc // ends its start
	running running
	files   *files
	noInput bool // the input was ended
	size    size // of the terminal, as it was last asked for
	code    uint32
	at      time.Time
}

func newProcess(c *container, exec, stdin, stdout, stderr string, terminal bool) *process {
	return &process{of: c, exec: exec, stdin: stdin, stdout: stdout, stderr: stderr,
		terminal: terminal, over: make(chan struct{}), said: make(chan struct{}), told: make(chan struct{}),
		begun: make(chan struct{}), resizing: make(chan struct{}, 1)}
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
	f, err := openFiles(p.stdin, p.stdout, p.stderr, p.terminal)
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
		first := p.size
		p.mu.Unlock()
		var run running
		streams := f.io()
		streams.Columns, streams.Rows = first.columns, first.rows
		if p.exec == "" {
			run, err = p.of.pod.Start(ctx, streams)
		} else {
			run, err = p.of.pod.Exec(ctx, p.exec, p.spec, streams)
		}
		if err == nil {
			p.mu.Lock()
			p.running = run
			asked := p.size
			p.mu.Unlock()
			if asked != first {
				go func() { _ = run.Resize(context.WithoutCancel(ctx), asked.columns, asked.rows) }()
			}
			go p.watch(run, f)
			return nil
		}
		f.close()
	}
	p.finish(255, time.Now(), false)
	return err
}

// announce says that the start of the process was announced: its end follows.
func (p *process) announce() { close(p.told) }

// watch waits for the end of the process.
func (p *process) watch(run running, f *files) {
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
			// of its own bound, or of the sandbox's where the kernel has no other
			if stats, err := p.of.pod.Stats(ctx); err == nil && stats.OOM > 0 || run.OutOfMemory() {
				s.send(runtime.TaskOOMEventTopic, &eventstypes.TaskOOM{ContainerID: p.of.id})
			}
			cancel()
		}
	}
	<-p.told
	p.finish(uint32(code), at, true)
	if p.exec == "" && s.single() { // nothing else can run in its sandbox
		s.end()
	}
}

// finish notes the end of the process, and announces it afterwards: who learns of the end asks for
// the state.
func (p *process) finish(code uint32, at time.Time, announce bool) {
	p.mu.Lock()
	p.code, p.at = code, at
	p.mu.Unlock()
	close(p.over)
	if announce {
		id := p.of.id
		if p.exec != "" {
			id = p.exec
		}
		p.of.service.send(runtime.TaskExitEventTopic, &eventstypes.TaskExit{ContainerID: p.of.id,
			ID: id, Pid: self(), ExitStatus: code, ExitedAt: timestamppb.New(at)})
	}
	close(p.said)
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

// killed is the exit code of a process that SIGKILL has ended.
const killed = 128 + uint32(syscall.SIGKILL)

// retire ends a process that was not started with an exit code, and reports whether it may be
// forgotten.
func (p *process) retire(code uint32) bool {
	p.mu.Lock()
	if !p.started {
		p.started = true
		p.mu.Unlock()
		p.finish(code, time.Now(), false)
		return true
	}
	p.mu.Unlock()
	select {
	case <-p.over:
		<-p.said // its deletion is announced after it
		return true
	default:
		return false
	}
}

// cancelStart ends the start of a process that is under way, if a deadly signal asks for it, and
// returns the process if it runs nevertheless.
func (p *process) cancelStart(ctx context.Context, sig syscall.Signal) (running, error) {
	p.mu.Lock()
	cancel := p.cancel
	p.mu.Unlock()
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM || cancel == nil { // it ended unstarted
		return nil, nil
	}
	cancel()
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
		p.finish(128+uint32(sig), time.Now(), p.exec == "")
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
	sent := p.signals.send(sig, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), p.of.service.killLimit())
		defer cancel()
		return run.Kill(ctx, sig)
	})
	t := time.NewTimer(signalLimit)
	defer t.Stop()
	select {
	case <-sent.done:
		return sent.err
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

// size is that of a terminal.
type size struct {
	columns, rows uint32
	number        uint64 // counts what was asked for
}

// resize sets the size of the terminal. Of many sizes at once only the last is set; one that is
// asked for during the start is set after it.
func (p *process) resize(ctx context.Context, columns, rows uint32) error {
	p.mu.Lock()
	p.size = size{columns, rows, p.size.number + 1}
	mine, run := p.size, p.running
	p.mu.Unlock()
	if run == nil {
		return nil
	}
	select {
	case p.resizing <- struct{}{}:
	case <-p.over:
		return fmt.Errorf("it has ended: %w", errdefs.ErrNotFound)
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.resizing }()
	p.mu.Lock()
	last := p.size == mine
	p.mu.Unlock()
	if !last {
		return nil
	}
	return run.Resize(ctx, columns, rows)
}

func (p *process) closeStdin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noInput = true; p.files != nil {
		p.files.endIn()
	}
}
