package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// freezeTime is how long processes may take to stand still. One that the kernel
// cannot stop, because it waits for a device, is the reason to give up.
const freezeTime = 10 * time.Second

// Suspend is Sandbox.suspend. From here on no process runs until renew: none ever
// sees that it is in a clone that still has the name of another.
func (s *sandbox) Suspend(ctx context.Context, _ *wire.Conn, p *wire.SandboxSuspendParams) (*wire.SandboxSuspendResult, error) {
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
	ctx, cancel := context.WithTimeout(ctx, freezeTime)
	defer cancel()
	err := a.hold(ctx)
	if d := a.opt.Disks; err == nil && p.Sync && d != nil {
		err = d.sync()
	}
	if c := a.opt.Card; err == nil && c != nil {
		c.Suspend()
	}
	if err == nil {
		err = port.Expect(p.Marker)
	}
	if err != nil {
		err = errors.Join(err, a.letGo())
		a.suspended.Store(false)
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, "sandbox", err).
			WithHint("a process cannot be stopped just now; try again")
	}
	res := new(wire.SandboxSuspendResult)
	if d := a.opt.Disks; d != nil {
		res.Upper = d.Upper
	}
	return res, nil
}

// hold makes all processes stand still.
func (a *Agent) hold(ctx context.Context) error {
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

// sync writes all of them out. With no process running nothing is written behind it.
func (d *Disks) sync() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, fd := range d.fds {
		err = errors.Join(err, unix.Syncfs(fd))
	}
	return err
}

// Renew is Sandbox.renew.
func (s *sandbox) Renew(_ context.Context, _ *wire.Conn, p *wire.SandboxRenewParams) (*wire.SandboxRenewResult, error) {
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
	if a.suspended.Load() || a.held.Load() {
		if err := a.letGo(); err != nil {
			return nil, Failed("the processes", err)
		}
		a.suspended.Store(false)
	}
	return res, nil
}
