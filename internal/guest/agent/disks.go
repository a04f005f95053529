package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/hardlinks"
	"turnstone.dev/turnstone/wire"
)

// Disks are the file systems that take the sandbox's writes.
type Disks struct {
	// Still ends every process that could write, where the kernel cannot freeze file systems; nil:
	// the kernel freezes them.
	Still func(ctx context.Context) error
	Open  string // as Options.fds
	Upper string // the scratch disk's directory that is the overlay's upper directory
	Work  string // the one that is its work directory
	fds   []int  // a directory of each, the scratch disk's first
	links hardlinks.Completer

	mu     sync.Mutex
	frozen int // number of frozen fds
}

// Add adds the file system that is mounted at dir.
func (d *Disks) Add(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		d.fds = append(d.fds, fd)
	}
	return err
}

// Close lets go of the file systems. The agent has been closed.
func (d *Disks) Close() (err error) {
	for _, fd := range d.fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// freeze flushes all file systems and blocks further writes (ioctl_fsfreeze). On a kernel without
// this feature, it ends every process that could write: processes that a step started, including
// those moved to another group. The agent's own writes have already stopped.
func (d *Disks) freeze(ctx context.Context) error {
	if d.Still != nil {
		soon, cancel := context.WithTimeout(ctx, killWait)
		defer cancel()
		if err := d.Still(soon); err != nil {
			return err
		}
	}
	if err := d.complete(ctx); err != nil || d.Still != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.frozen < len(d.fds) {
		// EBUSY: already frozen
		if err := unix.IoctlSetInt(d.fds[d.frozen], fiFreeze, 0); err != nil && err != unix.EBUSY {
			_ = d.thawAll()
			return err
		}
		d.frozen++
	}
	return nil
}

// complete adds the names that only the overlay knows to the upper directory: see package hardlinks.
// No process may write to the disks.
func (d *Disks) complete(ctx context.Context) error {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	index, err := unix.Openat(d.fds[0], filepath.Join(d.Work, "index"), flags, 0)
	if err == unix.ENOENT {
		return nil // the overlay has none
	} else if err != nil {
		return &os.PathError{Op: "open", Path: d.Work, Err: err}
	}
	defer unix.Close(index)
	root, err := unix.Open("/", flags, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/", Err: err}
	}
	defer unix.Close(root)
	return d.links.Complete(ctx, root, index)
}

// KillOthers kills every process except the agent, which must be PID 1 (kill(2)). Otherwise it
// would kill every process of the machine.
func KillOthers(ctx context.Context) error {
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
		// EINVAL: not frozen
		if e := unix.IoctlSetInt(d.fds[d.frozen-1], fiThaw, 0); e != nil && e != unix.EINVAL {
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

// killWait bounds the time until killed processes have ended.
const killWait = 30 * time.Second

// Freeze implements State.freeze. It keeps the shell session's turn until thaw, so that no step can
// begin.
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
		var err error
		if d.Still != nil { // otherwise the kernel makes them wait
			soon, cancel := context.WithTimeout(ctx, killWait)
			defer cancel()
			err = s.a.files.Writes.Stop(soon)
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

// stop kills all processes, waits for the end of the running step, and takes the session's turn.
func (s *shell) stop(ctx context.Context, op turnstone.Op) error {
	s.a.frozen.Store(true)
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	taken := false
	for {
		gone := s.a.opt.Groups == nil || s.a.opt.Groups.KillAll() // nil: in a test
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

// Thaw implements State.thaw.
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

// needsDisk reports which commands are rejected between freeze and thaw: commands that write to a
// disk or start a process that could.
func needsDisk(method string) bool {
	switch method {
	case wire.MethodProcessStart, wire.MethodProcessPrepare, wire.MethodShellExecute,
		wire.MethodStateSetSession, wire.MethodFileSystemWrite, wire.MethodFileSystemMkdir, wire.MethodFileSystemMove,
		wire.MethodFileSystemRemove, wire.MethodFileSystemUnpack, wire.MethodSandboxNetwork:
		return true
	}
	return false
}
