package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Disks are the file systems that take the sandbox's writes.
type Disks struct {
	GVisor bool   // the kernel cannot freeze them
	Open   string // as Options.fds
	Upper  string // which directory of the scratch disk is the overlay's upper one
	fds    []int  // each a directory of one, the scratch disk's first

	mu     sync.Mutex
	frozen int // how many of fds are
}

// Add takes the file system that is mounted at dir.
func (d *Disks) Add(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		d.fds = append(d.fds, fd)
	}
	return err
}

// freeze writes all of them out and lets no further write begin (ioctl_fsfreeze).
// Where the kernel cannot, it ends whatever could write: what a step started, and
// what it has put into another group. The agent's own writes are at rest already.
func (d *Disks) freeze(ctx context.Context) error {
	if d.GVisor {
		return killOthers(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.frozen < len(d.fds) {
		if err := unix.IoctlSetInt(d.fds[d.frozen], fiFreeze, 0); err != nil && err != unix.EBUSY { // EBUSY: it is frozen
			_ = d.thawAll()
			return err
		}
		d.frozen++
	}
	return nil
}

// killOthers kills every process but the agent, which is PID 1 (kill(2)). Anywhere
// else that would be every process of the machine.
func killOthers(ctx context.Context) error {
	if os.Getpid() != 1 {
		return errors.New("the agent is not the first process")
	}
	for {
		if err := unix.Kill(-1, unix.SIGKILL); err == unix.ESRCH {
			return nil
		} else if err != nil {
			return os.NewSyscallError("kill", err)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *Disks) thaw() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.thawAll()
}

func (d *Disks) thawAll() (err error) {
	for ; d.frozen > 0; d.frozen-- {
		if e := unix.IoctlSetInt(d.fds[d.frozen-1], fiThaw, 0); e != nil && e != unix.EINVAL { // EINVAL: it is not frozen
			err = errors.Join(err, e)
		}
	}
	return err
}

// FIFREEZE and FITHAW of linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// killWait bounds how long killed processes may take to be gone.
const killWait = 30 * time.Second

// Freeze is State.freeze. It keeps the shell session's turn until thaw, so that no
// step can begin.
func (s *shell) Freeze(ctx context.Context, _ *wire.Conn) (*wire.StateFreezeResult, error) {
	const op = wire.MethodStateFreeze
	d := s.a.opt.Disks
	if d == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	s.a.freezing.Lock()
	defer s.a.freezing.Unlock()
	if !s.a.frozen.Load() {
		if err := s.stop(ctx, op); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, killWait)
		defer cancel()
		var err error
		if d.GVisor { // else the kernel makes them wait
			err = s.a.files.Writes.Stop(ctx)
		}
		if err == nil {
			err = d.freeze(ctx)
		}
		if err != nil {
			s.a.files.Writes.Resume()
			s.a.frozen.Store(false)
			s.give()
			return nil, turnstone.NewError(op, turnstone.KindUnavailable, "disk", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &wire.StateFreezeResult{Cwd: s.cwd, Env: s.env, Upper: d.Upper}, nil
}

// stop kills all processes, waits for the end of the step that ran, and takes the
// session's turn.
func (s *shell) stop(ctx context.Context, op turnstone.Op) error {
	s.a.frozen.Store(true)
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	taken := false
	for {
		gone := s.a.opt.Groups.KillAll()
		if !taken {
			select {
			case s.turn <- struct{}{}:
				taken = true
			default:
			}
		}
		if taken && gone {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			if taken {
				s.give()
			}
			s.a.frozen.Store(false)
			return turnstone.NewError(op, turnstone.KindCanceled, "sandbox's processes",
				context.Cause(ctx))
		}
	}
}

// Thaw is State.thaw.
func (s *shell) Thaw(context.Context, *wire.Conn) error {
	s.a.freezing.Lock()
	defer s.a.freezing.Unlock()
	if !s.a.frozen.Load() {
		return nil
	}
	if err := s.a.opt.Disks.thaw(); err != nil {
		return turnstone.NewError(wire.MethodStateThaw, turnstone.KindUnavailable, "disk", err)
	}
	s.a.files.Writes.Resume()
	s.a.frozen.Store(false)
	s.give()
	return nil
}

// needsDisk says which commands are refused between freeze and thaw: those that
// write to a disk or start something that could.
func needsDisk(method string) bool {
	switch method {
	case wire.MethodProcessStart, wire.MethodShellExecute, wire.MethodStateSetSession,
		wire.MethodFileSystemWrite, wire.MethodFileSystemMkdir, wire.MethodFileSystemMove,
		wire.MethodFileSystemRemove, wire.MethodFileSystemUnpack, wire.MethodSandboxNetwork:
		return true
	}
	return false
}
