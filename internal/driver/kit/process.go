// Package kit contains the common parts of all drivers' machines.
package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/subprocess"
)

// A Process is the program that runs a machine, with the guest's console and the reason for its
// end. A driver embeds it in its substrate.Sandbox. Its methods are safe for concurrent use once
// Start has returned.
type Process struct {
	Console *console.Watch // set before Start
	Advice  string         // hint for a guest that does not start; set before Start

	id      turnstone.SandboxID
	process *os.Process
	done    chan struct{}

	mu     sync.Mutex
	closed bool
	cause  error // reason for its end
	err    error
}

// New returns the process of a machine that has not started.
func New(id turnstone.SandboxID, c *console.Watch, advice string) *Process {
	return &Process{Console: c, Advice: advice, id: id, done: make(chan struct{})}
}

// Start starts cmd as package subprocess does. The machine's driver calls End in o.Ended.
func (p *Process) Start(cmd *exec.Cmd, o subprocess.Options) error {
	if err := subprocess.Start(cmd, o); err != nil {
		return err
	}
	p.process = cmd.Process
	return nil
}

// ID implements substrate.Sandbox.
func (p *Process) ID() turnstone.SandboxID { return p.id }

// PID returns the ID of the process.
func (p *Process) PID() int { return p.process.Pid }

// Done implements substrate.Sandbox.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err implements substrate.Sandbox.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close implements substrate.Sandbox.
func (p *Process) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.Kill()
	<-p.done
	return nil
}

// Closed reports whether Close was called.
func (p *Process) Closed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Kill ends the process, and never another process that reuses its ID.
func (p *Process) Kill() error { return p.process.Kill() }

// Blame records why the machine is about to end. The first reason counts.
func (p *Process) Blame(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil {
		p.cause = cause
	}
}

// End records that the process has ended, and why: Close, the reason of Blame, or the result of
// explain.
func (p *Process) End(explain func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
	case p.cause != nil:
		p.err = p.cause
	default:
		p.err = explain()
	}
	close(p.done)
}

// Dup returns a new descriptor of f, a file that the machine keeps open until Close.
func (p *Process) Dup(op turnstone.Op, f *os.File) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.closedError(op)
	}
	return Dup(f)
}

// closedError returns the error of operations on a closed machine.
func (p *Process) closedError(op turnstone.Op) error {
	return turnstone.Errorf(op, turnstone.KindDead, string(p.id), "the sandbox is closed")
}

// Dup returns a new descriptor of f.
func Dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("dup: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Starting reports whether the agent is not ready yet.
func (p *Process) Starting() bool {
	select {
	case <-p.Console.Ready():
		return false
	default:
		return true
	}
}

// Hint returns the hint for a guest that does not start; empty once the guest has started.
func (p *Process) Hint() string {
	if p.Starting() {
		return p.Advice
	}
	return ""
}

// Wait blocks until the agent is ready. It returns an error if the guest gives up or hangs, or if
// the machine or ctx ends. For load see console.Watch.Await.
func (p *Process) Wait(ctx context.Context, op turnstone.Op, limits console.Patience,
	load func() (console.Load, error)) error {
	err := p.Console.Await(ctx, limits, load, p.done)
	switch own := p.Err(); {
	case err == nil, ctx.Err() != nil:
		return err
	case errors.Is(err, console.ErrEnded) && own != nil:
		return own
	case errors.Is(err, console.ErrEnded):
		return p.closedError(op)
	}
	return turnstone.NewError(op, turnstone.KindDead, string(p.id), err).WithHint(p.Hint())
}

// endWait is how long a process may take to end after its connection broke.
const endWait = 100 * time.Millisecond

// Why returns the machine's reason for its end if it has ended, and err otherwise.
func (p *Process) Why(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-p.done:
	case <-time.After(endWait):
	}
	if own := p.Err(); own != nil {
		return own
	}
	return err
}

// NotSnapshotted converts err, the failure of a snapshot into the folder dir, to a
// *turnstone.Error; nil stays nil.
func (p *Process) NotSnapshotted(ctx context.Context, op turnstone.Op, dir string,
	err error) error {
	var e *turnstone.Error
	if err = p.Why(err); err == nil || errors.As(err, &e) {
		return err
	}
	e = turnstone.Classify(op, turnstone.KindUnavailable, string(p.id), err,
		makeRoom(filepath.Dir(dir)))
	if ctx.Err() != nil {
		e.Kind, e.Hint = turnstone.KindCanceled, ""
	}
	return e
}

// makeRoom returns the hint for a full disk.
func makeRoom(dir string) string { return "free some space on the disk that contains " + dir }

// Fault converts err, the failure of a driver's operation in the state directory dir, to a
// *turnstone.Error; a *turnstone.Error stays unchanged, and nil stays nil. hint is used if the
// cause is unknown.
func Fault(op turnstone.Op, driver, dir string, err error, hint string) error {
	if err == nil || turnstone.KindOf(err) != turnstone.KindInternal {
		return err
	}
	e := turnstone.Classify(op, turnstone.KindUnavailable, driver, err, makeRoom(dir))
	if e.Kind == turnstone.KindUnavailable {
		e.Hint = hint
	}
	return e
}

// CPUTime returns the processor time that the program and its processes have used so far; 0 after
// their end.
func (p *Process) CPUTime() time.Duration { return host.CPUTime(p.PID()) }
