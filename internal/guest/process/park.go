package process

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/account"
	"turnstone.dev/turnstone/internal/guest/parked"
)

// A waiting is a process that was loaded before its command is known.
type waiting struct {
	pid     int
	name    string // its first argument
	path    string // of its program
	account *account.Account
	held    *parked.Held
	group   *cgroup // nil: none
	io      streams
	status  <-chan syscall.WaitStatus
	files   []identity
	tracer  *Thread // to close; nil: the space's
}

// nullFD is where a parked process has /dev/null.
const nullFD = 3

// Park executes and loads a program that the next Start uses if it asks for it, with any further
// arguments, environment and directory, and with user, for pipes. Every next Start takes the
// process away: after a Start nothing remains of it. An error, such as of a kernel or a program for
// which it cannot be done, changes nothing for later starts.
func (t *Table) Park(name, user string, env []string) error {
	const op = "Process.prepare"
	if name == "" || strings.Contains(name, "/") {
		return invalid(op, name, "a program's name is needed, without a directory")
	}
	t.parking.Lock()
	defer t.parking.Unlock()
	t.unpark()
	w := &waiting{name: name}
	if user != "" {
		var err error
		if w.account, err = account.Lookup(t.openFile, user); err != nil {
			return err
		}
		env = MergeEnv(w.account.Env(), env)
	}
	var err error
	if w.path, err = t.lookPath(name, "/", env); err != nil {
		return err
	}
	if err := t.park(w); err != nil {
		return turnstone.NewError(op, turnstone.KindUnavailable, name, err).
			WithHint("nothing is lost: the program is started when it is asked for")
	}
	t.mu.Lock()
	closed := t.closed
	t.parked = w
	t.mu.Unlock()
	if closed {
		t.unpark()
	}
	return nil
}

// Unpark ends the process of Park that no Start has used. No process of Park stands still then, as
// a snapshot of the machine or a stop of its processes needs it.
func (t *Table) Unpark() {
	t.parking.Lock()
	defer t.parking.Unlock()
	t.unpark()
}

// unpark is Unpark. t.parking is held.
func (t *Table) unpark() {
	t.mu.Lock()
	w := t.parked
	t.parked = nil
	t.mu.Unlock()
	if w != nil {
		t.discard(w)
	}
}

func (t *Table) park(w *waiting) (err error) {
	defer func() {
		if err != nil {
			t.discard(w)
		}
	}()
	if err := w.io.open(true, w.account); err != nil {
		return err
	}
	defer w.io.closeChild()
	argv, env := parked.Placeholders(w.name)
	attr := t.attributes(Spec{Cwd: "/", Env: env, Files: []*os.File{t.null}, account: w.account},
		&w.io)
	attr.Sys.Ptrace = true
	if g := t.opt.Groups; g != nil {
		if w.group, err = g.take(); err != nil {
			return err
		}
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, w.group.fd
	}
	thread, proc := (*Thread)(nil), procFS{}
	if space := t.opt.Space; space != nil {
		if err := space.ready(); err != nil {
			return err
		}
		thread, proc = space.forks, space.proc
	} else {
		if thread, err = NewThread(func() error { return nil }); err != nil {
			return err
		}
		w.tracer = thread
	}
	tracee := parked.Tracee{Name: w.name, On: thread.Do}
	w.pid, tracee.Stops, w.status, err = t.opt.Reaper.trace(func() (pid int, err error) {
		thread.Do(func() { pid, err = syscall.ForkExec(w.path, argv, attr) })
		return pid, err
	})
	if err != nil {
		return err
	}
	tracee.PID = w.pid
	self := strconv.Itoa(w.pid) + "/"
	tracee.Stat = func() ([]byte, error) {
		buf := make([]byte, 1024)
		n, err := proc.read(self+"stat", buf)
		return buf[:max(0, n)], err
	}
	if w.held, err = parked.Hold(tracee); err != nil {
		return err
	}
	w.files, err = t.loaded(proc, self+"maps", w.path)
	return err
}

// discard ends a process that is not used, and waits for its end.
func (t *Table) discard(w *waiting) {
	if w.pid != 0 {
		select {
		case <-w.status: // its number may be another process's by now
		default:
			_ = syscall.Kill(w.pid, syscall.SIGKILL)
			<-w.status
		}
	}
	if w.tracer != nil {
		w.tracer.Close()
	}
	w.io.closeParent()
	if w.group != nil {
		w.group.release()
	}
}

// unparked returns the process of Park as the process that s asks for; nil: there is none that fits.
// No process of Park is left.
func (t *Table) unparked(s Spec, path string) *waiting {
	t.parking.Lock()
	defer t.parking.Unlock()
	t.mu.Lock()
	w := t.parked
	t.parked = nil
	t.mu.Unlock()
	if w == nil {
		return nil
	}
	start := parked.Start{Argv: s.Argv, Env: s.Env, Cwd: s.Cwd, Shut: []int{nullFD}}
	if !s.Stdin {
		start.Move, start.Shut = [][2]int{{nullFD, 0}}, nil
	}
	if s.Terminal != nil || len(s.Files) > 0 || path != w.path || !w.account.Same(s.account) ||
		!parked.Fits(w.name, start) || !t.unchanged(w.files) || w.held.Release(start) != nil {
		t.discard(w)
		return nil
	}
	if !s.Stdin {
		_ = w.io.parent[0].Close()
		w.io.parent[0] = nil
	}
	if w.tracer != nil {
		w.tracer.Close()
	}
	return w
}

// An identity is a file of a loaded program, or one that decides what is loaded.
type identity struct {
	path string
	stat [8]int64 // zero: there is none
}

// loaderFiles decide what the dynamic linker loads (ld.so(8)).
var loaderFiles = []string{"/etc/ld.so.preload", "/etc/ld.so.cache"}

// maxMaps bounds the text of a program's maps that is read.
const maxMaps = 64 << 10

// loaded returns the files of a process, as they are now: if one is another at the start, another
// program would be started.
func (t *Table) loaded(proc procFS, maps, program string) ([]identity, error) {
	paths := append([]string{program}, loaderFiles...)
	text, err := proc.readAll(maps, maxMaps)
	if err != nil {
		return nil, err
	}
	self := t.identify(program)
	for line := range strings.SplitSeq(text, "\n") {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		path := line[at:]
		if root := t.opt.Chroot; root != "" && root != "/" && strings.HasPrefix(path, root+"/") {
			path = path[len(root):]
		}
		if !isPlain(path) && t.identify(path) != self {
			return nil, errors.New("it has a library that may have read its arguments")
		}
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	if !slices.ContainsFunc(paths, isGlibc) {
		return nil, errors.New("its C library is not known")
	}
	var files []identity
	for i, path := range paths {
		f := identity{path, t.identify(path)}
		if f.stat == [8]int64{} && (i == 0 || i > len(loaderFiles)) {
			return nil, errors.New("a file of the program is not found")
		}
		files = append(files, f)
	}
	return files, nil
}

// plain are the beginnings of the names of libraries that read neither arguments nor environment when
// they are loaded: those of the C library and of a shell.
var plain = []string{"ld-", "ld.so", "libc.so.", "libc-", "libdl", "libm.", "libm-", "libpthread",
	"librt", "libtinfo", "libncurses", "libreadline", "libhistory"}

// isPlain reports whether path is such a library. Another one, such as one of /etc/ld.so.preload,
// would have got the placeholders.
func isPlain(path string) bool {
	name := filepath.Base(path)
	return slices.ContainsFunc(plain, func(s string) bool { return strings.HasPrefix(name, s) })
}

// isGlibc reports whether path is a C library that notes where the environment is when it is loaded.
// Another one, such as musl, may look for it and for what follows it when the program begins.
func isGlibc(path string) bool {
	name := filepath.Base(path)
	return name == "libc.so.6" || strings.HasPrefix(name, "libc-2.")
}

func (t *Table) unchanged(files []identity) bool {
	return !slices.ContainsFunc(files,
		func(f identity) bool { return t.identify(f.path) != f.stat })
}

// identify returns what distinguishes a file from others and from its earlier contents.
func (t *Table) identify(path string) (id [8]int64) {
	fd, err := t.openFile(path, unix.O_PATH)
	if err != nil {
		return id
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return id
	}
	return [8]int64{int64(st.Dev), int64(st.Ino), int64(st.Mode), st.Size, st.Mtim.Sec, st.Mtim.Nsec,
		st.Ctim.Sec, st.Ctim.Nsec}
}
