package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// freezeTime bounds the time until all processes are stopped. It expires if the kernel cannot stop
// a process that waits for a device.
const freezeTime = 10 * time.Second

// Suspend implements Sandbox.suspend. No process runs from then on until renew, so that no process
// sees a clone that still has another sandbox's identity.
func (s *sandbox) Suspend(ctx context.Context, _ *wire.Conn,
	p *wire.SandboxSuspendParams) (*wire.SandboxSuspendResult, error) {
	const op = wire.MethodSandboxSuspend
	a := s.a
	port := a.port.Load()
	if a.opt.Renew == nil || port == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	if len(p.Marker) != wire.MarkerSize {
		return nil, Invalid(op, "marker", "32 bytes are needed")
	}
	if a.frozen.Load() {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox",
			"its disks are frozen").WithHint("call State.thaw first")
	}
	if !a.suspended.CompareAndSwap(false, true) {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "sandbox",
			"it is being suspended")
	}
	holding, cancel := context.WithTimeout(ctx, freezeTime)
	defer cancel()
	err := a.hold(holding)
	if d := a.opt.Disks; err == nil && p.Sync && d != nil {
		if err = d.complete(ctx); err == nil {
			err = d.sync()
		}
	}
	if c := a.opt.Card; err == nil && c != nil {
		c.Suspend()
	}
	if err == nil {
		err = port.Expect(p.Marker)
	}
	if err == nil {
		a.channels.erase()
	}
	if err != nil {
		err = errors.Join(err, a.letGo())
		a.suspended.Store(false)
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, "sandbox", err).
			WithHint("try again: a process could not be stopped")
	}
	res := new(wire.SandboxSuspendResult)
	if d := a.opt.Disks; d != nil {
		res.Upper = d.Upper
	}
	return res, nil
}

// hold stops all processes. A parked one ends: it is stopped in a way of its own, and copies of the
// machine must not share its random numbers.
func (a *Agent) hold(ctx context.Context) error {
	a.procs.Unpark()
	if a.opt.Groups == nil {
		return nil // in a test
	}
	return a.opt.Groups.Freeze(ctx)
}

func (a *Agent) letGo() error {
	if a.held.Swap(false) {
		a.files.Writes.Resume()
	}
	if a.opt.Groups == nil {
		return nil
	}
	return a.opt.Groups.Thaw()
}

// sync flushes all file systems. No process runs, so nothing is written afterwards.
func (d *Disks) sync() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, fd := range d.fds {
		err = errors.Join(err, unix.Syncfs(fd))
	}
	return err
}

// Renew implements Sandbox.renew.
func (s *sandbox) Renew(_ context.Context, _ *wire.Conn,
	p *wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
	const op = wire.MethodSandboxRenew
	a := s.a
	if a.opt.Renew == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	a.renewing.Lock()
	defer a.renewing.Unlock()
	res, err := a.opt.Renew(p)
	if err != nil {
		return nil, err
	}
	if !res.Reseeded {
		a.fresh.Store(false)
	}
	if a.suspended.Load() || a.held.Load() {
		if err := a.letGo(); err != nil {
			return nil, Failed("the processes", err)
		}
		a.suspended.Store(false)
	}
	return res, nil
}
