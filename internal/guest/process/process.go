package process

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/account"
)

// A Terminal is a terminal's size in characters.
type Terminal struct{ Columns, Rows int }

// A Spec is a process to start.
type Spec struct {
	ID       string   // "": chosen by the table
	Argv     []string // Argv[0] is looked up in Env's PATH
	Env      []string
	More     []string // added to Env and to User's variables
	Cwd      string
	User     string    // NAME, NUMBER, or either with :GROUP; "": the agent's own
	Terminal *Terminal // nil: pipes
	Stdin    bool      // keep standard input open; otherwise it is /dev/null

	Files   []*os.File // inherited from descriptor 3 on
	Watcher Watcher    // nil: reads are not reported
	// Before, if set, is called after the start and before any output was read: an attachment in it
	// misses nothing.
	Before func(*Process)
	// Fed, if set, is called with what the process was given as its standard input. It must return
	// quickly, and not keep data.
	Fed func(data []byte)
	// Ended, if set, is called once after a start, when the process has ended and before others
	// learn of it. It must return quickly.
	Ended func()

	account *account.Account
}

// An Exit describes the end of a process.
type Exit struct {
	Code      int    // 128 plus the signal's number if a signal ended the process, as in the shell
	Signal    string // the signal's name, or ""
	Core      bool   // the signal has left a core dump
	OOMKilled bool   // a memory limit killed a process of the tree
	DiskFull  bool   // the disk was full
	Killed    bool   // Signal sent SIGKILL
	Duration  time.Duration
}

// A Process is a process of a Table. Its methods are safe for concurrent use.
type Process struct {
	ID       string
	Argv     []string
	Cwd      string
	Started  time.Time
	PID      int // from the agent's point of view
	Terminal bool
	// AccountEnv is the environment that the user's account defines, such as HOME; nil: no Spec.User.
	AccountEnv []string
	Out        [3]*Log // standard output (1) and error (2; nil with a terminal)

	number atomic.Int64 // see Number

	table  *Table
	group  *cgroup    // nil: kill by process group
	using  sync.Mutex // held while the group is signaled, so that it is not reused meanwhile
	stdin  *os.File
	master *os.File
	files  []*os.File // read by the pumps
	pumps  sync.WaitGroup

	ready    chan struct{} // closed after the start or its failure
	startErr error         // valid after ready
	killed   atomic.Bool
	fed      func(data []byte)
	exited   chan struct{} // closed when the process has ended
	exit     Exit          // valid after exited
	done     chan struct{} // closed when the process has ended and its logs are complete

	writing  chan struct{} // held by the writer of standard input
	closing  sync.Once
	closedIn atomic.Bool
	attached atomic.Int64
	accepted atomic.Int64 // bytes of standard input
	// the process has ended and its logs are complete; guarded by table.mu, like the next two
	over    bool
	retired bool // it is among the table's ended processes
	gone    bool // it was forgotten
}

// Number returns the process's PID from its own point of view; 0: unknown because the process ended
// before the first call.
func (p *Process) Number() int {
	space := p.table.opt.Space
	if space == nil {
		return p.PID
	}
	if n := p.number.Load(); n != 0 || p.Ended() {
		return int(n)
	}
	n := space.number(p.PID)
	p.number.Store(int64(n))
	return n
}

// Attached returns the number of connections that take its output.
func (p *Process) Attached() int64 { return p.attached.Load() }

// Accepted returns the number of bytes that its standard input has accepted.
func (p *Process) Accepted() int64 { return p.accepted.Load() }

// Attach registers a connection that takes the process's output: meanwhile the process is not
// forgotten, and counts as running. The error is of kind NotFound if it was already forgotten.
// Detach must follow.
func (p *Process) Attach() error { return p.table.attach(p) }

// Detach reverts Attach.
func (p *Process) Detach() { p.table.detach(p) }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Exited is closed when the process has ended; Exit then returns how.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Done is closed when the process has ended and its logs contain all its output.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is valid once Exited is closed.
func (p *Process) Exit() Exit { return p.exit }

// Wait waits for the process's end.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.exited:
		return p.exit, nil
	case <-ctx.Done():
		return Exit{}, turnstone.NewError("Process.wait", turnstone.KindCanceled, p.ID,
			context.Cause(ctx))
	}
}

// maxWrite bounds a single Write.
const maxWrite = 1 << 20

// Write writes to standard input or the terminal, and returns when all bytes were accepted. Writes
// run one after another.
func (p *Process) Write(ctx context.Context, data []byte) error {
	const op = "Process.write"
	switch {
	case len(data) > maxWrite:
		return invalid(op, p.ID, "more than 1 MiB at once")
	case p.stdin == nil:
		return invalid(op, p.ID, "the process was started without standard input")
	}
	select {
	case p.writing <- struct{}{}:
	case <-p.exited:
		return p.hasEnded(op)
	case <-ctx.Done():
		return turnstone.NewError(op, turnstone.KindCanceled, p.ID, context.Cause(ctx))
	}
	defer func() { <-p.writing }()
	if p.Ended() {
		return p.hasEnded(op)
	}
	if p.closedIn.Load() {
		return invalid(op, p.ID, "standard input is closed")
	}
	// A deadline in the past makes a waiting write return.
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = p.stdin.SetWriteDeadline(time.Unix(1, 0))
		close(stopped)
	})
	n, err := p.stdin.Write(data)
	p.accepted.Add(int64(n))
	if p.fed != nil && n > 0 {
		p.fed(data[:n])
	}
	if !stop() {
		<-stopped
		_ = p.stdin.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return turnstone.NewError(op, turnstone.KindCanceled, p.ID, context.Cause(ctx))
	case p.Ended():
		return p.hasEnded(op)
	case errors.Is(err, syscall.EPIPE):
		return turnstone.Errorf(op, turnstone.KindUnavailable, p.ID,
			"the process has closed its standard input").WithHint("write no more to the process")
	}
	return turnstone.NewError(op, turnstone.KindUnavailable, p.ID, rootCause(err))
}

// CloseStdin closes standard input; on a terminal it sends the end-of-file character, which ends
// the input at the beginning of a line.
func (p *Process) CloseStdin(ctx context.Context) error {
	const op = "Process.closeStdin"
	if p.stdin == nil {
		return invalid(op, p.ID, "the process was started without standard input")
	}
	if !p.Terminal {
		p.closeIn()
		return nil
	}
	if p.Ended() {
		return p.hasEnded(op)
	}
	eof := byte(4) // ^D
	if raw, err := p.master.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if mode, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
				eof = mode.Cc[unix.VEOF]
			}
		})
	}
	return p.Write(ctx, []byte{eof})
}

// closeIn closes a pipe to standard input; a waiting Write returns.
func (p *Process) closeIn() {
	p.closing.Do(func() {
		p.closedIn.Store(true)
		if p.stdin != nil && !p.Terminal {
			_ = p.stdin.Close()
		}
	})
}

// Resize changes the terminal's size. The foreground processes get SIGWINCH.
func (p *Process) Resize(size Terminal) error {
	const op = "Process.resize"
	if err := size.check(op); err != nil {
		return err
	}
	if !p.Terminal {
		return invalid(op, p.ID, "the process has no terminal")
	}
	if p.Ended() {
		return p.hasEnded(op)
	}
	raw, err := p.master.SyscallConn()
	if err != nil {
		return p.hasEnded(op)
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = setSize(int(fd), size) }); err != nil {
		return p.hasEnded(op)
	}
	return serr
}

func (t Terminal) check(op turnstone.Op) error {
	if t.Columns < 1 || t.Columns > 65535 || t.Rows < 1 || t.Rows > 65535 {
		return invalid(op, "terminal", "columns and rows must be from 1 to 65535")
	}
	return nil
}

// run waits for the process's end for its table.
func (p *Process) run(status <-chan syscall.WaitStatus, ended func()) {
	ws := <-status
	p.exit = Exit{Code: ws.ExitStatus(), Killed: p.killed.Load(), Duration: time.Since(p.Started)}
	if ws.Signaled() {
		p.exit.Code, p.exit.Signal = 128+int(ws.Signal()), signalName(ws.Signal())
		p.exit.Core = ws.CoreDump()
	}
	if p.group != nil {
		p.exit.OOMKilled = p.group.oomKills() > 0
	}
	if p.exit.Code != 0 {
		p.exit.DiskFull = diskFull(p.table.root)
	}
	for _, f := range p.files {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // once; see pump
	}
	for _, l := range p.Out[1:] {
		l.hurry() // the rest in the pipe is the last, and the end waits for no reader
	}
	p.closeIn()
	if ended != nil {
		ended()
	}
	close(p.exited)
	p.pumps.Wait()
	p.table.hasEnded(p)
	close(p.done)
	if p.group != nil {
		p.using.Lock()
		defer p.using.Unlock()
		p.group.release() // nothing waits for the release
	}
}

// signalName returns the name of a signal: SIGKILL, and SIG and the number of one without a name.
func signalName(n syscall.Signal) string {
	return cmp.Or(unix.SignalName(n), "SIG"+strconv.Itoa(int(n)))
}

// diskFull reports whether the file system at path has less than 1 MiB, or 1%, free.
func diskFull(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Blocks == 0 {
		return false
	}
	free := fs.Bavail * uint64(fs.Bsize)
	return free < 1<<20 || fs.Bavail < fs.Blocks/100 || fs.Ffree == 0 && fs.Files > 0
}
