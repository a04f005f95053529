package process

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// A Terminal is a terminal's size in characters.
type Terminal struct{ Columns, Rows int }

// A Spec is a process to start.
type Spec struct {
	ID       string   // "": the table makes one
	Argv     []string // Argv[0] is looked up in Env's PATH
	Env      []string
	More     []string // added to Env, and to what comes with User
	Cwd      string
	User     string    // NAME, NUMBER, or either with :GROUP; "": the agent's own
	Terminal *Terminal // nil: pipes
	Stdin    bool      // hold standard input open; else it is /dev/null

	Files   []*os.File // inherited from descriptor 3 on
	Watcher Watcher    // nil: nobody is told of reads
	// Before, if set, is called when the process was started and nothing of its
	// output has been read: who attaches in it misses nothing.
	Before func(*Process)

	account *account
}

// An Exit is how a process ended.
type Exit struct {
	Code      int    // 128 and the signal when a signal ended it, as the shell has it
	Signal    string // its name, or ""
	OOMKilled bool   // a memory limit killed a process of the tree
	DiskFull  bool   // the disk had no room left
	Killed    bool   // Signal sent SIGKILL
	Duration  time.Duration
}

// A Process is one process of a Table. Its methods are safe for concurrent use.
type Process struct {
	ID       string
	Argv     []string
	Cwd      string
	Started  time.Time
	PID      int // as the agent has it
	Terminal bool
	Out      [3]*Log // standard output (1) and error (2; nil with a terminal)

	number atomic.Int64 // see Number

	table  *Table
	group  *cgroup    // nil: kill by process group
	using  sync.Mutex // held while the group is signalled, so that it is not another process's by then
	stdin  *os.File
	master *os.File
	files  []*os.File // what the pumps read
	pumps  sync.WaitGroup

	ready    chan struct{} // closed when it was started, or that failed
	startErr error         // valid after ready
	killed   atomic.Bool
	exited   chan struct{} // closed when it has ended
	exit     Exit          // valid after exited
	done     chan struct{} // closed when it has ended and its logs have all its output

	writing  chan struct{} // taken by who writes standard input
	closing  sync.Once
	closedIn atomic.Bool
	attached atomic.Int64
	over     bool // it has ended and its logs have all its output; table.mu guards it and the next two
	retired  bool // it is one of the table's ended ones
	gone     bool // it was forgotten
}

// Number is the process's PID as it has it itself; 0: not known, since it has ended and
// nobody has asked before.
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

// Attached counts the connections that take its output.
func (p *Process) Attached() int64 { return p.attached.Load() }

// Attach says that a connection takes its output: while one does, the process is
// not forgotten, and counts as one that runs. The error is of kind KindNotFound when it
// was forgotten already. Detach must follow.
func (p *Process) Attach() error { return p.table.attach(p) }

// Detach says that a connection does not take its output any more.
func (p *Process) Detach() { p.table.detach(p) }

// Ended says whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Exited is closed when the process has ended; Exit then says how.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Done is closed when the process has ended and its logs hold all its output.
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

// MaxWrite bounds one Write.
const MaxWrite = 1 << 20

// Write writes to standard input or the terminal, and returns when all of it was
// taken. Writes come one after another.
func (p *Process) Write(ctx context.Context, data []byte) error {
	const op = "Process.write"
	switch {
	case len(data) > MaxWrite:
		return invalid(op, p.ID, "more than 1 MiB at once")
	case p.stdin == nil:
		return invalid(op, p.ID, "standard input was not asked for when the process was started")
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
	// A deadline in the past makes a write that waits return.
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = p.stdin.SetWriteDeadline(time.Unix(1, 0))
		close(stopped)
	})
	_, err := p.stdin.Write(data)
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
			"the process has closed its standard input").WithHint("it reads no more")
	}
	return turnstone.NewError(op, turnstone.KindUnavailable, p.ID, rootCause(err))
}

// CloseStdin closes standard input; on a terminal it sends the end-of-file
// character, which ends input where a line begins.
func (p *Process) CloseStdin(ctx context.Context) error {
	const op = "Process.closeStdin"
	if p.stdin == nil {
		return invalid(op, p.ID, "standard input was not asked for when the process was started")
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

// closeIn closes a pipe to standard input; a Write that waits returns.
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
		return invalid(op, "terminal", "columns and rows are from 1 to 65535")
	}
	return nil
}

// run waits for the process's end, on behalf of its table.
func (p *Process) run(status <-chan syscall.WaitStatus) {
	ws := <-status
	p.exit = Exit{Code: ws.ExitStatus(), Killed: p.killed.Load(), Duration: time.Since(p.Started)}
	if ws.Signaled() {
		p.exit.Code, p.exit.Signal = 128+int(ws.Signal()), unix.SignalName(ws.Signal())
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
		l.hurry() // what the pipe holds is the last, and the end waits for nobody
	}
	p.closeIn()
	close(p.exited)
	p.pumps.Wait()
	p.table.hasEnded(p)
	close(p.done)
	if p.group != nil {
		p.using.Lock()
		defer p.using.Unlock()
		p.group.release() // nobody waits for that
	}
}

// diskFull says whether the file system at path has less than 1 MiB, or 1%, left.
func diskFull(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Blocks == 0 {
		return false
	}
	free := fs.Bavail * uint64(fs.Bsize)
	return free < 1<<20 || fs.Bavail < fs.Blocks/100 || fs.Ffree == 0 && fs.Files > 0
}
