// Package process starts processes and keeps their output. A process belongs to its Table, not to
// its starter: its output is kept up to a bound, and any reader may read it from any kept offset.
package process

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/guest/account"
)

const (
	maxRunning   = 512      // concurrent processes
	keepEnded    = 64       // ended processes that are kept
	keepEndedAll = 16 << 20 // total bytes of output kept for ended processes
	maxIDLength  = 64
)

// Options configure a Table. The zero value uses the caller's own root, without control groups:
// processes are signaled by session.
type Options struct {
	Chroot string // root of processes; "": the caller's own root
	Root   Root   // looks up names in Chroot; nil: normal lookups
	// MkdirAll makes the directory in which a process begins; nil: it belongs to the caller.
	MkdirAll func(path string) error
	Groups   *Groups // nil: none
	Reaper   Reaper  // nil: a separate wait for each process
	Space    *Space  // nil: the caller's
	Keep     int64   // bytes kept of each output; 0: 1 MiB
}

// A Root looks up absolute names in the root of processes, which may change links meanwhile: no
// link leads out of the root. Its methods are safe for concurrent use.
type Root interface {
	Open(path string, flags int) (fd int, err error) // close-on-exec
	MkdirAll(path string) error
}

// A Table holds processes. Its methods are safe for concurrent use.
type Table struct {
	opt    Options
	root   string
	null   *os.File
	chunks *chunks
	wg     sync.WaitGroup

	parking sync.Mutex // held while a process is parked, taken or discarded; before mu

	mu      sync.Mutex
	parked  *waiting // nil: none
	procs   map[string]*Process
	running int        // including ended processes with attached connections
	made    int        // number in the last ID that the table chose
	order   []*Process // oldest first
	ended   []*Process // in the order of their ends
	open    map[*os.File]struct{}
	closed  bool
}

// NewTable returns an empty table. Close it.
func NewTable(opt Options) (*Table, error) {
	if opt.Reaper == nil {
		opt.Reaper = directReaper{}
	}
	opt.Keep = cmp.Or(opt.Keep, keepBytes)
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &Table{opt: opt, root: cmp.Or(opt.Chroot, "/"), null: null, chunks: newChunks(),
		procs: make(map[string]*Process), open: make(map[*os.File]struct{})}, nil
}

// path returns the caller's name of a path in the processes' root.
func (t *Table) path(p string) string { return filepath.Join(t.root, p) }

func (t *Table) openFile(p string, flags int) (int, error) {
	if t.opt.Root != nil {
		return t.opt.Root.Open(p, flags)
	}
	return unix.Open(t.path(p), flags|unix.O_CLOEXEC, 0)
}

func (t *Table) mkdirAll(p string) error {
	if t.opt.MkdirAll != nil {
		return t.opt.MkdirAll(p)
	}
	if t.opt.Root != nil {
		return t.opt.Root.MkdirAll(p)
	}
	return os.MkdirAll(t.path(p), 0o755)
}

// isProgram reports whether p is an executable file.
func (t *Table) isProgram(p string) bool {
	fd, err := t.openFile(p, unix.O_PATH)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}

// Start starts a process.
func (t *Table) Start(s Spec) (*Process, error) {
	const op = "Process.start"
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return nil, invalid(op, "parameters", "a program is needed")
	}
	if s.Terminal != nil {
		if err := s.Terminal.check(op); err != nil {
			return nil, err
		}
		s.Stdin = true
	}
	p, err := t.reserve(&s)
	if err != nil {
		return nil, err
	}
	status, err := t.prepare(p, s)
	if err != nil {
		p.startErr = err
		t.unreserve(p)
		close(p.ready)
		return nil, err
	}
	if s.Before != nil {
		s.Before(p)
	}
	close(p.ready)
	t.begin(p, s, status)
	return p, nil
}

// Account returns the numbers of a user and its group, as Spec's User names it.
func (t *Table) Account(user string) (uid, gid uint32, err error) {
	a, err := account.Lookup(t.openFile, user)
	if err != nil {
		return 0, 0, err
	}
	return a.UID, a.GID, nil
}

// prepare finds the process's user and launches it.
func (t *Table) prepare(p *Process, s Spec) (<-chan syscall.WaitStatus, error) {
	if s.User != "" {
		a, err := account.Lookup(t.openFile, s.User)
		if err != nil {
			return nil, err
		}
		s.account = a
		p.AccountEnv = a.Env()
		s.Env = MergeEnv(p.AccountEnv, s.Env) // explicit values have precedence
	}
	s.Env = MergeEnv(s.Env, s.More)
	return t.launch(p, s)
}

// reserve reserves a name for a process that is being started.
func (t *Table) reserve(s *Spec) (*Process, error) {
	const op = "Process.start"
	if s.ID != "" && !validID(s.ID) {
		return nil, invalid(op, s.ID,
			"a process's name has 1 to 64 letters, digits, '.', '_' and '-'")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, turnstone.Errorf(op, turnstone.KindDead, "sandbox", "it is ending")
	case t.procs[s.ID] != nil:
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, s.ID,
			"another process has this name").
			WithHint("choose another name, or forget an ended process with Process.release")
	case t.running >= maxRunning:
		return nil, turnstone.Errorf(op, turnstone.KindExhausted, "processes",
			"512 processes run already").
			WithHint("end some processes")
	}
	for s.ID == "" || t.procs[s.ID] != nil {
		t.made++
		s.ID = "p" + strconv.Itoa(t.made)
	}
	p := &Process{ID: s.ID, Argv: shorten(s.Argv), Cwd: s.Cwd, Started: time.Now(),
		Terminal: s.Terminal != nil, table: t, fed: s.Fed,
		ready: make(chan struct{}), exited: make(chan struct{}), done: make(chan struct{}),
		writing: make(chan struct{}, 1)}
	p.Out[1] = newLog(t.chunks, t.opt.Keep)
	if !p.Terminal {
		p.Out[2] = newLog(t.chunks, t.opt.Keep)
	}
	t.procs[p.ID] = p
	t.running++
	t.wg.Add(1)
	return p, nil
}

func (t *Table) unreserve(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.procs, p.ID)
	t.running--
	t.wg.Done()
}

// begin starts the goroutines that wait for a process and read its outputs.
func (t *Table) begin(p *Process, s Spec, status <-chan syscall.WaitStatus) {
	watch := s.Watcher
	if watch == nil {
		watch = noWatcher{}
	}
	t.mu.Lock()
	t.order = append(t.order, p)
	for _, f := range p.files {
		t.open[f] = struct{}{}
	}
	closed := t.closed
	t.mu.Unlock()
	if closed { // Close did not see it
		_ = p.Signal(syscall.SIGKILL)
	}
	for i, f := range p.files {
		p.pumps.Add(1)
		pm := &pump{f: f, log: p.Out[i+1], stream: i + 1, watch: watch, terminal: p.Terminal}
		t.wg.Go(func() { t.pump(p, pm) })
	}
	go func() {
		defer t.wg.Done()
		p.run(status, s.Ended)
	}()
}

// pump reads an output to its end: into its log until the process has ended.
func (t *Table) pump(p *Process, pm *pump) {
	raw, err := pm.f.SyscallConn()
	ended := err != nil
	if !ended {
		pm.raw = raw
		ended = pm.run()
	}
	pm.log.end()
	p.pumps.Done()
	if !ended {
		pm.watch = noWatcher{}
		pm.discard()
	}
	if p.Terminal {
		<-p.exited // until then it takes input and sizes
	}
	t.mu.Lock()
	delete(t.open, pm.f)
	t.mu.Unlock()
	_ = pm.f.Close()
}

// hasEnded records that a process has ended and that its logs are complete.
func (t *Table) hasEnded(p *Process) {
	t.mu.Lock()
	p.over = true
	gone := t.retire(p)
	t.mu.Unlock()
	forget(gone)
}

func (t *Table) attach(p *Process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.gone {
		return notFound("Process.attach", p.ID)
	}
	if p.attached.Add(1); p.retired { // it counts again
		p.retired = false
		t.running++
		t.ended = slices.DeleteFunc(t.ended, func(q *Process) bool { return q == p })
	}
	return nil
}

func (t *Table) detach(p *Process) {
	t.mu.Lock()
	p.attached.Add(-1)
	gone := t.retire(p)
	t.mu.Unlock()
	forget(gone)
}

// retire adds an ended process without attached connections to the kept processes. It returns the
// oldest excess process for the caller to forget. t.mu is held.
func (t *Table) retire(p *Process) (gone []*Process) {
	if !p.over || p.retired || p.gone || p.attached.Load() > 0 {
		return nil
	}
	t.running--
	p.retired = true
	t.ended = append(t.ended, p)
	total := int64(0)
	for i := len(t.ended) - 1; i >= 0; i-- {
		total += t.ended[i].kept()
		if len(t.ended)-i > keepEnded || total > keepEndedAll && i < len(t.ended)-1 {
			gone = slices.Clone(t.ended[:i+1])
			break
		}
	}
	for _, q := range gone {
		t.remove(q)
	}
	return gone
}

func forget(gone []*Process) {
	for _, q := range gone {
		q.forget()
	}
}

func (p *Process) kept() int64 {
	var n int64
	for _, l := range p.Out[1:] {
		first, end := l.Range()
		n += end - first
	}
	return n
}

func (p *Process) forget() {
	for _, l := range p.Out[1:] {
		l.forget()
	}
}

// remove removes an ended process from the table. t.mu is held.
func (t *Table) remove(p *Process) {
	delete(t.procs, p.ID)
	p.gone = true
	same := func(q *Process) bool { return q == p }
	t.order = slices.DeleteFunc(t.order, same)
	t.ended = slices.DeleteFunc(t.ended, same)
}

// Get returns the process with this name after its start.
func (t *Table) Get(op turnstone.Op, id string) (*Process, error) {
	t.mu.Lock()
	p := t.procs[id]
	t.mu.Unlock()
	if p != nil {
		if <-p.ready; p.startErr == nil {
			return p, nil
		}
	}
	return nil, notFound(op, id)
}

func notFound(op turnstone.Op, id string) error {
	return turnstone.Errorf(op, turnstone.KindNotFound, brief.Subject(id), "no such process").
		WithHint("list processes with Process.list; of those that have ended only the latest are " +
			"kept")
}

// List returns the processes, oldest first.
func (t *Table) List() []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// Release forgets an ended process without attached connections.
func (t *Table) Release(p *Process) error {
	t.mu.Lock()
	if p.over && p.retired {
		t.remove(p)
		t.mu.Unlock()
		p.forget()
		return nil
	}
	attached, gone := p.over, p.gone
	t.mu.Unlock()
	te := turnstone.Errorf("Process.release", turnstone.KindInvalid, p.ID,
		"the process runs, or its output is still being read").WithHint("end it first")
	switch {
	case gone:
		return notFound("Process.release", p.ID)
	case attached:
		te.Err, te.Hint = errors.New(
			"a connection is attached to it and has not received all of its output"),
			"read the output to its end, or detach with Process.detach"
	}
	return te
}

// Close kills all running processes, and waits until none is left.
func (t *Table) Close() error {
	t.mu.Lock()
	t.closed = true
	procs := slices.Clone(t.order)
	t.mu.Unlock()
	t.Unpark()
	for _, p := range procs {
		_ = p.Signal(syscall.SIGKILL) // if it has not ended
		p.forget()
	}
	for _, p := range procs {
		<-p.exited
	}
	t.mu.Lock()
	for f := range t.open {
		_ = f.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
	return t.null.Close()
}

// maxArgv and maxArgs bound the kept arguments of a process: bytes and number. A message that lists
// all processes must not be too large.
const (
	maxArgv = 4096
	maxArgs = 128
)

// shorten keeps the beginning of a list of arguments, and marks the cut.
func shorten(argv []string) []string {
	left := maxArgv
	for i, arg := range argv {
		if i == maxArgs {
			return append(slices.Clone(argv[:i]), "…")
		}
		if left -= len(arg) + 1; left < 0 {
			end := max(0, left+len(arg)+1)
			return append(slices.Clone(argv[:i]),
				strings.Clone(strings.ToValidUTF8(arg[:min(end, len(arg))], ""))+"…")
		}
	}
	return argv
}

func validID(id string) bool {
	return id != "" && len(id) <= maxIDLength && strings.Trim(id, IDChars) == ""
}

// IDChars are the characters of a process's name.
const IDChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
