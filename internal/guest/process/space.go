package process

import (
	"embed"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// A Space is the PID namespace of a machine's processes, which does not contain the agent
// (pid_namespaces(7)): a process cannot name the agent, and so can neither trace it, open its
// descriptors nor send it signals. The agent is still their parent: it waits for them, and its
// control groups contain them. In /proc they see only themselves.
//
// The namespace lives as long as its first process. Root in the namespace may be able to end that
// process because gVisor's kernel does not protect it. All others then end too, and the next start
// creates a new namespace. Its methods are safe for concurrent use.
type Space struct {
	reaper Reaper
	dir    string // the mount point of /proc for processes
	shown  func() error
	forks  *Thread
	proc   procFS // an unmounted /proc that shows all processes

	mu    sync.Mutex
	ended chan struct{} // closed when the namespace's first process has ended
}

// lostCaps are the capabilities that no process in a space has: each would give root access to the
// whole kernel, and so to the agent (capabilities(7)).
var lostCaps = []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_BOOT}

// NewSpace creates the namespace and mounts its /proc at dir, replacing the agent's, which must
// exist. shown, if set, is called after each mount. Only the first process of a machine may call
// NewSpace.
func NewSpace(reaper Reaper, dir string, shown func() error) (*Space, error) {
	s := &Space{reaper: reaper, dir: dir, shown: shown}
	var err error
	if s.proc.dir, err = os.Open(dir); err != nil {
		return nil, s.failed(dir, err)
	}
	s.forks, err = NewThread(func() error {
		for _, c := range lostCaps {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return os.NewSyscallError("prctl", err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, s.failed("capabilities", err)
	}
	if err := s.Enter(); err != nil {
		return nil, s.failed(dir, err)
	}
	return s, s.ready()
}

// Enter makes the agent's own /proc, which shows all processes, its working directory. It is not
// mounted, because root in the sandbox could follow any path.
func (s *Space) Enter() error {
	return os.NewSyscallError("fchdir", unix.Fchdir(int(s.proc.dir.Fd())))
}

// ready creates the namespace if there is none.
func (s *Space) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		select {
		case <-s.ended:
		default:
			return nil
		}
	}
	pid, ended, err := s.begin()
	if err != nil {
		return s.failed("first process", err)
	}
	s.ended = ended
	err = s.enter(pid)
	if err == nil && s.shown != nil {
		err = s.shown()
	}
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return s.failed("namespace", err)
	}
	// It has no more work, and a stopped process costs a clone nothing.
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	return nil
}

func (s *Space) failed(subject string, err error) error {
	return turnstone.NewError("process.space", turnstone.KindUnavailable, "the sandbox's "+subject,
		err).WithHint("report that the sandbox's processes could not be separated from its agent")
}

//go:embed all:bin
var files embed.FS

// begin starts the namespace's first process, and waits until it has mounted /proc.
func (s *Space) begin() (pid int, ended chan struct{}, err error) {
	program, err := memfd("bin/init")
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(program)
	var said [2]int
	if err := unix.Pipe2(said[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, os.NewSyscallError("pipe", err)
	}
	defer func() { _ = unix.Close(said[0]) }()
	pid, status, err := s.reaper.start(func() (pid int, err error) {
		return syscall.ForkExec("self/fd/"+strconv.Itoa(program), []string{"init", s.dir},
			&syscall.ProcAttr{
				Env: []string{}, Files: []uintptr{uintptr(said[1]), uintptr(said[1]),
					uintptr(said[1])},
				Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID}})
	})
	_ = unix.Close(said[1])
	if err != nil {
		return 0, nil, err
	}
	ended = make(chan struct{})
	go func() {
		<-status
		close(ended)
	}()
	var b [8]byte
	n, err := unix.Read(said[0], b[:])
	if n != 1 {
		return 0, nil, errors.Join(err, errors.New("it could not mount /proc"))
	}
	_, err = unix.Read(said[0], b[:]) // it closes the pipe, and has no more files of the agent
	return pid, ended, err
}

func memfd(name string) (int, error) {
	program, err := files.ReadFile(name)
	if err != nil {
		return -1, errors.New("this program was built without it: run make build")
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if _, err := unix.Write(fd, program); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("write", err)
	}
	return fd, nil
}

// enter makes later processes members of pid's namespace.
func (s *Space) enter(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	s.forks.Do(func() { err = unix.Setns(fd, unix.CLONE_NEWPID) })
	return os.NewSyscallError("setns", err)
}

// fork calls fork with a namespace that differs from the parent's.
func (s *Space) fork(fork func() (int, error)) (pid int, err error) {
	s.forks.Do(func() { pid, err = fork() })
	return pid, err
}

// number returns a process's number inside the namespace; 0: none. It comes from the description of
// a descriptor of the process (proc(5)).
func (s *Space) number(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var buf [512]byte
	n, err := s.proc.read("self/fdinfo/"+strconv.Itoa(fd), buf[:])
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(buf[:n]), "\n") {
		if all, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(all); len(f) == 2 {
				inside, _ := strconv.Atoi(f[1])
				return inside
			}
		}
	}
	return 0
}

// A procFS is a /proc.
type procFS struct{ dir *os.File } // nil: the one at /proc

// read reads the start of a file in p.
func (p procFS) read(name string, buf []byte) (int, error) {
	at, path := unix.AT_FDCWD, "/proc/"+name
	if p.dir != nil {
		at, path = int(p.dir.Fd()), name
	}
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	return unix.Read(fd, buf)
}

// readAll reads a file in p of less than limit bytes.
func (p procFS) readAll(name string, limit int64) (string, error) {
	at, path := unix.AT_FDCWD, "/proc/"+name
	if p.dir != nil {
		at, path = int(p.dir.Fd()), name
	}
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err == nil && int64(len(b)) == limit {
		err = errors.New("it is too long")
	}
	return string(b), err
}

// processes returns the numbers of all processes.
func (p procFS) processes() ([]int, error) {
	at, path := unix.AT_FDCWD, "/proc"
	if p.dir != nil {
		at, path = int(p.dir.Fd()), "."
	}
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc", Err: err}
	}
	dir := os.NewFile(uintptr(fd), "/proc")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// A Thread is a dedicated thread for the kernel's per-thread state.
type Thread struct{ work chan func() }

// NewThread starts a thread with setup, whose error is returned. Close it.
func NewThread(setup func() error) (*Thread, error) {
	t := &Thread{work: make(chan func())}
	began := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := setup(); err != nil {
			began <- err
			return
		}
		began <- nil
		for f := range t.work {
			f()
		}
	}()
	return t, <-began
}

// Do runs f in the thread, and waits for it.
func (t *Thread) Do(f func()) {
	done := make(chan struct{})
	t.work <- func() { f(); close(done) }
	<-done
}

// Close ends the thread. Do must not be called afterwards.
func (t *Thread) Close() { close(t.work) }
