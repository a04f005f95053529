package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	wire "turnstone.dev/turnstone/oldwire"
)

// A proc is one process that was started, or will be: its streams may be asked
// for before the call that starts it arrives, since callers do not wait.
type proc struct {
	id     string
	begun  atomic.Bool   // a call starts it, or has
	ready  chan struct{} // closed when started, or when that failed
	failed bool          // valid after ready
	pid    int           // valid after ready, unless failed
	group  *cgroup       // nil: kill by process group
	out    [3]*os.File   // read ends of standard output (1) and error (2)
	stdin  *os.File      // write end, or nil
	killed atomic.Bool
	ended  atomic.Bool
	taken  [3]atomic.Bool // outputs that a stream has claimed
}

// A spec is a process to start.
type spec struct {
	id    string
	argv  []string // argv[0] is looked up in env's PATH
	env   []string
	cwd   string
	stdin bool
}

type procTable struct {
	a    *Agent
	null *os.File

	mu     sync.Mutex
	procs  map[string]*proc
	pipes  map[*os.File]struct{} // read ends that are being discarded
	closed bool
}

func newProcTable(a *Agent, null *os.File) *procTable {
	return &procTable{a: a, null: null, procs: make(map[string]*proc), pipes: make(map[*os.File]struct{})}
}

// get returns the process with this ID, a new one if there is none yet.
func (t *procTable) get(id string) *proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.procs[id]
	if p == nil {
		p = &proc{id: id, ready: make(chan struct{})}
		t.procs[id] = p
	}
	return p
}

// forget drops p once it has ended and both its outputs have been claimed.
func (t *procTable) forget(p *proc) {
	if p.ended.Load() && p.taken[1].Load() && p.taken[2].Load() {
		t.mu.Lock()
		delete(t.procs, p.id)
		t.mu.Unlock()
	}
}

// abandon ends the streams of a process that will not be started.
func (t *procTable) abandon(id string) {
	p := t.get(id)
	if p.begun.Swap(true) {
		return // another call's, or an end of its own
	}
	t.fail(p)
}

func (t *procTable) fail(p *proc) {
	p.failed = true
	p.ended.Store(true)
	close(p.ready)
	t.forget(p)
}

// start is Process.start.
func (a *Agent) start(ctx context.Context, p wire.StartParams) (any, error) {
	if len(p.Argv) == 0 || p.ID == "" {
		a.procs.abandon(p.ID)
		return nil, invalid("process.start", "parameters", "an id and at least one argument are needed")
	}
	if p.Cwd == "" {
		p.Cwd = a.opt.Cwd
	}
	res, err := a.procs.run(ctx, spec{
		id: p.ID, argv: p.Argv, env: mergeEnv(a.opt.Env, p.Env), cwd: p.Cwd, stdin: p.Stdin,
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// run starts a process and waits for its end. When ctx ends, the process's tree
// is killed. What the process's outputs held at its end is still delivered.
func (t *procTable) run(ctx context.Context, s spec) (wire.ExitResult, error) {
	p := t.get(s.id)
	if p.begun.Swap(true) {
		return wire.ExitResult{}, invalid("process.start", s.id, "a process with this id runs already")
	}
	began := time.Now()
	status, err := t.launch(p, s)
	if err != nil {
		t.fail(p)
		return wire.ExitResult{}, err
	}
	close(p.ready)
	if p.killed.Load() {
		t.signal(p) // the kill came first
	}
	stop := context.AfterFunc(ctx, func() { t.kill(p.id) })
	defer stop()

	ws := <-status
	res := exitResult(ws)
	res.Duration = time.Since(began)
	p.ended.Store(true)
	for _, f := range p.out[1:] {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // once; see pump
	}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	res.Killed = p.killed.Load()
	if p.group != nil {
		res.OOMKilled = p.group.oomKills() > 0
		go p.group.release()
	}
	if res.ExitCode != 0 {
		res.DiskFull = diskFull(t.a.path("/"))
	}
	t.forget(p)
	return res, nil
}

// launch forks and execs. On success p's fields are set.
func (t *procTable) launch(p *proc, s spec) (<-chan syscall.WaitStatus, error) {
	cwd := t.a.path(s.cwd)
	if !filepath.IsAbs(s.cwd) {
		return nil, invalid("process.start", s.cwd, "the working directory is not an absolute path")
	}
	if err := os.MkdirAll(cwd, 0o755); err != nil {
		return nil, &turnstone.Error{Op: "process.start", Kind: turnstone.Invalid, Subject: s.cwd,
			Err: rootCause(err), Hint: "the working directory does not exist and cannot be made"}
	}
	path, err := t.lookPath(s.argv[0], s.cwd, s.env)
	if err != nil {
		return nil, err
	}
	var io pipes
	defer io.closeChild()
	if err := io.open(s.stdin); err != nil {
		io.closeParent()
		return nil, startError(s.argv[0], err)
	}
	attr := &syscall.ProcAttr{
		Dir: s.cwd, Env: s.env,
		Files: []uintptr{t.null.Fd(), uintptr(io.child[1]), uintptr(io.child[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Chroot: t.a.opt.Chroot},
	}
	if s.stdin {
		attr.Files[0] = uintptr(io.child[0])
	}
	if g := t.a.opt.groups; g != nil {
		if p.group, err = g.take(); err != nil {
			io.closeParent()
			return nil, startError(s.argv[0], err)
		}
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, p.group.fd
	}
	pid, status, err := t.a.opt.reap.start(func() (int, error) { return syscall.ForkExec(path, s.argv, attr) })
	if err != nil {
		io.closeParent()
		if p.group != nil {
			p.group.release()
		}
		return nil, startError(s.argv[0], err)
	}
	p.pid, p.out, p.stdin = pid, [3]*os.File{1: io.parent[1], 2: io.parent[2]}, io.parent[0]
	return status, nil
}

// pipes are a child's standard streams: the child's ends as descriptors, the
// agent's as files.
type pipes struct {
	child  [3]int
	parent [3]*os.File
}

// pipeSize is what a pipe holds before its writer waits: large, because each
// change between writer and agent costs much under emulation.
const pipeSize = 1 << 20

func (p *pipes) open(stdin bool) error {
	p.child = [3]int{-1, -1, -1}
	for fd := range p.child {
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
		p.child[fd] = theirs
		_ = syscall.SetNonblock(mine, true)
		p.parent[fd] = os.NewFile(uintptr(mine), "pipe")
		_, _ = unix.FcntlInt(uintptr(mine), unix.F_SETPIPE_SZ, pipeSize) // a smaller one works too
	}
	return nil
}

func (p *pipes) closeChild() {
	for _, fd := range p.child {
		if fd > 0 {
			_ = syscall.Close(fd)
		}
	}
}

func (p *pipes) closeParent() {
	for _, f := range p.parent {
		if f != nil {
			_ = f.Close()
		}
	}
}

// kill sends SIGKILL to the whole tree of a process, or remembers to do so when
// it has not started yet. A process that has ended is left alone, and so is what
// it left in the background.
func (t *procTable) kill(id string) {
	p := t.get(id)
	if p.ended.Load() {
		return
	}
	p.killed.Store(true)
	select {
	case <-p.ready:
		if !p.failed {
			t.signal(p)
		}
	default:
	}
}

func (t *procTable) signal(p *proc) {
	if p.group != nil && p.group.kill() == nil {
		return
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
}

// close kills all that runs and closes the pipes.
func (t *procTable) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, p := range t.procs {
		select {
		case <-p.ready:
		default:
			continue
		}
		if p.failed {
			continue
		}
		if !p.ended.Load() {
			t.signal(p)
		}
		for fd, f := range p.out {
			if f != nil && !p.taken[fd].Load() {
				_ = f.Close()
			}
		}
	}
	for f := range t.pipes {
		_ = f.Close()
	}
	return t.null.Close()
}

// path returns the agent's own name for a path of the processes' root.
func (a *Agent) path(p string) string {
	if a.opt.Chroot == "" {
		return p
	}
	return filepath.Join(a.opt.Chroot, p)
}

// lookPath finds a program as execvp does, in the PATH that the process will see.
func (t *procTable) lookPath(name, cwd string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // exec reports what is wrong with it
	}
	for dir := range strings.SplitSeq(lookupEnv(env, "PATH"), ":") {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		path := filepath.Join(dir, name)
		var st unix.Stat_t
		if unix.Stat(t.a.path(path), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
			return path, nil
		}
	}
	return "", &turnstone.Error{Op: "process.start", Kind: turnstone.NotFound, Subject: name,
		Err:  errors.New("command not found"),
		Hint: "install it in the template, or give its path"}
}

func startError(name string, err error) error {
	e := &turnstone.Error{Op: "process.start", Kind: turnstone.Invalid, Subject: name, Err: err}
	switch {
	case errors.Is(err, syscall.ENOENT):
		e.Kind, e.Hint = turnstone.NotFound, "check the path, and the interpreter that a script names in its first line"
	case errors.Is(err, syscall.ENOEXEC):
		e.Hint = "start a script through its interpreter, or give it a #! line"
	case errors.Is(err, syscall.EACCES):
		e.Hint = "the file is not executable"
	case errors.Is(err, syscall.E2BIG):
		e.Hint = "the arguments and the environment are too long; pass them in a file"
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENOSPC):
		e.Kind, e.Hint = turnstone.Exhausted, "the sandbox has no room for another process; give it more memory or end what runs in it"
	}
	return e
}

func exitResult(ws syscall.WaitStatus) wire.ExitResult {
	if ws.Signaled() {
		return wire.ExitResult{ExitCode: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal())}
	}
	return wire.ExitResult{ExitCode: ws.ExitStatus()}
}

func invalid(op, subject, msg string) error {
	return &turnstone.Error{Op: op, Kind: turnstone.Invalid, Subject: subject, Err: errors.New(msg)}
}

// rootCause strips the agent's own path from a file error.
func rootCause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
