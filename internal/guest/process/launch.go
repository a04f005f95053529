package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/guest/account"
)

// streams are a child's standard streams: the child's ends as descriptors, the agent's as files. A
// terminal is a single file for all three.
type streams struct {
	child  [3]int
	parent [3]*os.File
	master *os.File
}

// pipeSize is the capacity of a pipe: large, because each switch between writer and agent is
// expensive under emulation.
const pipeSize = 1 << 20

// open opens pipes. They belong to their process's user: it may open them by name, such as /dev/stderr.
func (s *streams) open(stdin bool, owner *account.Account) error {
	s.child = [3]int{-1, -1, -1}
	for fd := range s.child {
		if fd == 0 && !stdin {
			continue
		}
		var ends [2]int
		if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
			return err
		}
		mine, theirs := ends[0], ends[1]
		if fd == 0 {
			mine, theirs = ends[1], ends[0]
		}
		s.child[fd] = theirs
		if owner != nil {
			_ = unix.Fchown(theirs, int(owner.UID), -1) // as runc does; without it only opening fails
		}
		_ = syscall.SetNonblock(mine, true)
		s.parent[fd] = os.NewFile(uintptr(mine), "pipe")
		_, _ = unix.FcntlInt(uintptr(mine), unix.F_SETPIPE_SZ, pipeSize) // a smaller size works too
	}
	return nil
}

// openTerminal opens a pair of pseudo-terminals (pty(7)).
func (s *streams) openTerminal(open account.Opener, size Terminal, owner *account.Account) error {
	s.child = [3]int{-1, -1, -1}
	fd, err := open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	s.master = os.NewFile(uintptr(fd), "terminal")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	if err := setSize(fd, size); err != nil {
		return err
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	slave := -1
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		slave = int(r)
	} else { // a kernel before 4.13, or a kernel other than Linux
		peer, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err != nil {
			return err
		}
		if slave, err = open("/dev/pts/"+strconv.Itoa(peer), flags); err != nil {
			return err
		}
	}
	s.child = [3]int{slave, slave, slave}
	if owner != nil {
		_ = unix.Fchown(slave, int(owner.UID), -1)
	}
	return nil
}

func setSize(fd int, size Terminal) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
		&unix.Winsize{Col: uint16(size.Columns), Row: uint16(size.Rows)})
}

func (s *streams) closeChild() {
	ends := s.child[:]
	if s.master != nil {
		ends = ends[:1] // all three are the same
	}
	for _, fd := range ends {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

func (s *streams) closeParent() {
	for _, f := range append(s.parent[:], s.master) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// launch forks and execs. After success p's fields are set.
func (t *Table) launch(p *Process, s Spec) (<-chan syscall.WaitStatus, error) {
	if !filepath.IsAbs(s.Cwd) {
		return nil, invalid("Process.start", s.Cwd, "the working directory is not an absolute path")
	}
	if err := t.mkdirAll(s.Cwd); err != nil {
		return nil, turnstone.NewError("Process.start", turnstone.KindInvalid, s.Cwd,
			rootCause(err)).WithHint("use a working directory that exists or can be created")
	}
	path, err := t.lookPath(s.Argv[0], s.Cwd, s.Env)
	if err != nil {
		return nil, err
	}
	if w := t.unparked(s, path); w != nil {
		p.group = w.group
		p.take(w.pid, &w.io)
		return w.status, nil
	}
	var io streams
	defer io.closeChild()
	if s.Terminal != nil {
		err = io.openTerminal(t.openFile, *s.Terminal, s.account)
	} else {
		err = io.open(s.Stdin, s.account)
	}
	if err != nil {
		io.closeParent()
		return nil, startError(s.Argv[0], err)
	}
	attr := t.attributes(s, &io)
	if g := t.opt.Groups; g != nil {
		if p.group, err = g.take(); err != nil {
			io.closeParent()
			return nil, startError(s.Argv[0], err)
		}
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, p.group.fd
	}
	fork := func() (int, error) { return syscall.ForkExec(path, s.Argv, attr) }
	if space := t.opt.Space; space != nil {
		exec := fork
		if err = space.ready(); err == nil {
			fork = func() (int, error) { return space.fork(exec) }
		} else {
			fork = func() (int, error) { return 0, err }
		}
	}
	pid, status, err := t.opt.Reaper.start(fork)
	if err != nil {
		io.closeParent()
		if p.group != nil {
			p.group.release()
		}
		return nil, startError(s.Argv[0], err)
	}
	p.take(pid, &io)
	return status, nil
}

// take makes p the process that was started with io.
func (p *Process) take(pid int, io *streams) {
	p.PID = pid
	if io.master != nil {
		p.master, p.stdin = io.master, io.master
		p.files = []*os.File{io.master}
		return
	}
	p.stdin = io.parent[0]
	p.files = []*os.File{io.parent[1], io.parent[2]}
}

func (t *Table) attributes(s Spec, io *streams) *syscall.ProcAttr {
	attr := &syscall.ProcAttr{
		Dir: s.Cwd, Env: s.Env,
		Files: []uintptr{t.null.Fd(), uintptr(io.child[1]), uintptr(io.child[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Chroot: t.opt.Chroot},
	}
	if io.child[0] >= 0 {
		attr.Files[0] = uintptr(io.child[0])
	}
	for _, f := range s.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	if io.master != nil {
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	if s.account != nil {
		attr.Sys.Credential = s.account.Credential()
	}
	return attr
}

// lookPath finds a program as execvp does, in the PATH of the new process.
func (t *Table) lookPath(name, cwd string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // exec reports the error
	}
	for dir := range strings.SplitSeq(LookupEnv(env, "PATH"), ":") {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		path := filepath.Join(dir, name)
		if t.isProgram(path) {
			return path, nil
		}
	}
	return "", turnstone.Errorf("Process.start", turnstone.KindNotFound, brief.Subject(name),
		"command not found").WithHint("install the program in the template, or write its path")
}

func startError(name string, err error) error {
	e := turnstone.NewError("Process.start", turnstone.KindInvalid, brief.Subject(name), err)
	switch {
	case errors.Is(err, syscall.ENOENT):
		e.Kind, e.Hint = turnstone.KindNotFound,
			"check the path, and the interpreter in a script's first line"
	case errors.Is(err, syscall.ENOEXEC):
		e.Hint = "start a script through its interpreter, or add a #! line to the script"
	case errors.Is(err, syscall.EACCES):
		e.Hint = "the file is not executable"
	case errors.Is(err, syscall.E2BIG):
		e.Hint = "the arguments and the environment are too long; pass them in a file"
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENOSPC):
		e.Kind, e.Hint = turnstone.KindExhausted,
			"end other processes of the sandbox, or give it more memory: it cannot start another "+
				"process"
	}
	return e
}

func invalid(op turnstone.Op, subject, msg string) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, brief.Subject(subject), "%s", msg)
}

// rootCause removes the agent's own path from a file error.
func rootCause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// LookupEnv returns the value of name, or "".
func LookupEnv(env []string, name string) string {
	for _, kv := range env {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			return v
		}
	}
	return ""
}
