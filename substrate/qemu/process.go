package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/descriptors"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/substrate/jail"
)

// files are what a machine is made of, open. A nil file is not passed.
type files struct {
	ram, root, scratch, kernel, initramfs *os.File

	home   *os.File
	layers []*os.File
}

// list has them in the order of their descriptors.
func (f *files) list() []*os.File {
	return append([]*os.File{f.ram, f.root, f.scratch, f.kernel, f.initramfs, f.home}, f.layers...)
}

func (f *files) close() {
	for _, file := range f.list() {
		if file != nil {
			_ = file.Close()
		}
	}
}

// machine is one running QEMU. It implements substrate.Sandbox and Pauser.
type machine struct {
	id      turnstone.SandboxID
	mon     *monitor
	agent   net.Conn
	card    net.Conn // the host's end of the network card; nil when there is none
	process *os.Process
	console tail
	stderr  tail
	live    *live         // for Snapshot; set before anybody else has the machine
	ready   chan struct{} // closed when the agent has said on the console that it is ready
	scratch *os.File      // the disk that takes the writes; closed with the machine
	wall    wall          // what QEMU is behind

	done   chan struct{}
	mu     sync.Mutex
	closed bool
	cause  error // what an event said before the end
	err    error
}

// start runs QEMU with a machine of the given shape. It takes ownership of f's files.
func (s *Substrate) start(shape turnstone.Shape, args []string, f files) (*machine, error) {
	defer f.close()
	m := &machine{id: turnstone.NewSandboxID(), wall: s.wall.Wall, done: make(chan struct{}), ready: make(chan struct{})}
	m.console.limit, m.stderr.limit = 16<<10, 8<<10
	var err error
	if m.scratch, err = dup(f.scratch); err != nil {
		return nil, err
	}
	if err := s.run(m, shape, args, f); err != nil {
		_ = m.scratch.Close()
		return nil, err
	}
	return m, nil
}

// run starts m's process, with one end of each of its sockets.
func (s *Substrate) run(m *machine, shape turnstone.Shape, args []string, f files) error {
	var theirs []*os.File
	ours := make([]net.Conn, 4) // by descriptor, from fdQMP on
	defer func() {
		for _, t := range theirs {
			if t != nil {
				_ = t.Close()
			}
		}
	}()
	for i := range ours {
		if fdQMP+i == fdNet && !shape.Network {
			theirs = append(theirs, nil)
			continue
		}
		conn, file, err := socketpair()
		if err != nil {
			closeAll(ours)
			return err
		}
		ours[i], theirs = conn, append(theirs, file)
	}
	cmd, release, err := s.command(m.wall, shape, f.home != nil, args, append(append([]*os.File{}, theirs...), f.list()...))
	if err != nil {
		closeAll(ours)
		return err
	}
	defer release()
	cmd.Stderr = &m.stderr
	m.agent, m.card = ours[1], ours[fdNet-fdQMP]
	if err := m.spawn(cmd); err != nil {
		closeAll(ours)
		return err
	}
	m.mon = newMonitor(ours[0], m.event)
	go m.readConsole(ours[2])
	return nil
}

// spawn starts cmd, whose end is the machine's.
func (m *machine) spawn(cmd *exec.Cmd) error {
	return launchOnThread(cmd, func(err error) {
		if err == nil {
			m.process = cmd.Process
		}
	}, m.ended)
}

// launchOnThread starts cmd from a thread of its own that lives as long as the process:
// the parent-death signal, by which QEMU never outlives us even when we are
// killed, belongs to the thread that forked (prctl(2), PR_SET_PDEATHSIG). started is
// called before it returns, and ended with the process's end.
func launchOnThread(cmd *exec.Cmd, started, ended func(error)) error {
	if err := descriptors.CloseOnExec(); err != nil {
		return err
	}
	running := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started(err)
		running <- err
		if err == nil {
			ended(cmd.Wait())
		}
	}()
	return <-running
}

// ended records why the process is gone.
func (m *machine) ended(wait error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.err = m.explain(wait)
	}
	_ = m.agent.Close()
	if m.card != nil {
		_ = m.card.Close()
	}
	close(m.done)
}

var panicLine = lazyregexp.New(`Kernel panic - not syncing: ([^\r\n]{1,200})`)

// explain turns an end nobody asked for into an error for the user.
func (m *machine) explain(wait error) error {
	e := &turnstone.Error{Op: "qemu.run", Kind: turnstone.Dead, Subject: string(m.id)}
	console := m.console.String()
	switch match := panicLine.FindStringSubmatch(console); {
	case m.cause != nil:
		return m.cause
	case match != nil:
		e.Err = fmt.Errorf("the guest kernel panicked: %s", printable(match[1]))
	case busError(wait):
		// Its memory is a file: a page that the disk has no room for ends it so.
		e.Kind, e.Hint = turnstone.Exhausted, "make room where TURN_HOME is"
		e.Err = errors.New("the host's disk is full: it has no room for the guest's memory")
	case jailFailure(m.stderr.String(), wait) != nil:
		e.Kind, e.Hint, e.Err = turnstone.Unavailable, "run `turn doctor`", jailFailure(m.stderr.String(), wait)
	case strings.TrimSpace(m.stderr.String()) != "":
		e.Err = fmt.Errorf("QEMU ended: %s", printable(strings.TrimSpace(m.stderr.String())))
	case wait != nil:
		e.Err = fmt.Errorf("QEMU ended: %w", wait)
	default:
		e.Err = errors.New("the guest shut its machine down")
	}
	return e
}

func busError(wait error) bool {
	var exit *exec.ExitError
	if !errors.As(wait, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGBUS
}

// printable keeps a hostile guest's console out of the terminal's hands.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == '\t' {
			return ' '
		}
		if r < 0x20 || r == 0x7f || r > 0x7e {
			return '?'
		}
		return r
	}, s)
}

// event reacts to what QEMU tells: a disk write that failed for want of room on
// the host stops the machine, which would wait for ever.
func (m *machine) event(e event) {
	if e.Name != "BLOCK_IO_ERROR" {
		return
	}
	var data struct {
		NoSpace bool   `json:"nospace"`
		Action  string `json:"action"`
		Reason  string `json:"reason"`
	}
	if json.Unmarshal(e.Data, &data) != nil || data.Action != "stop" {
		return
	}
	m.mu.Lock()
	if data.NoSpace {
		m.cause = &turnstone.Error{Op: "qemu.run", Kind: turnstone.Exhausted, Subject: string(m.id),
			Err: errors.New("the host's disk is full"), Hint: "make room where TURN_HOME is, or lower the sandbox's disk"}
	} else {
		m.cause = &turnstone.Error{Op: "qemu.run", Kind: turnstone.Dead, Subject: string(m.id),
			Err: fmt.Errorf("the host's disk fails: %s", data.Reason)}
	}
	m.mu.Unlock()
	_ = m.process.Kill()
}

// readyLine is what the agent prints on the console when a snapshot may be taken.
var readyLine = []byte("turnstone-agent: ready")

func (m *machine) readConsole(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	// Each byte is looked at once, however much a guest prints: the end of what
	// was read stays in front of what comes next.
	const keep = 64
	buf := make([]byte, keep+4096)
	seen, have := false, 0
	for {
		n, err := conn.Read(buf[have:])
		_, _ = m.console.Write(buf[have : have+n])
		if have += n; !seen && bytes.Contains(buf[:have], readyLine) {
			seen = true
			close(m.ready)
		}
		have = copy(buf, buf[max(0, have-keep):have])
		if err != nil {
			return
		}
	}
}

func (m *machine) ID() turnstone.SandboxID   { return m.id }
func (m *machine) Agent() io.ReadWriteCloser { return m.agent }
func (m *machine) Scratch() string           { return scratchSerial }

// Frames implements substrate.Networker.
func (m *machine) Frames() io.ReadWriteCloser {
	if m.card == nil {
		return nil
	}
	return m.card
}

func (m *machine) Done() <-chan struct{} { return m.done }

// PID is QEMU's process id, for measurements.
func (m *machine) PID() int { return m.process.Pid }

func (m *machine) Err() error {
	select {
	case <-m.done:
	default:
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Disk implements substrate.Disker.
func (m *machine) Disk() (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, &turnstone.Error{Op: "qemu.disk", Kind: turnstone.Dead, Subject: string(m.id), Err: errors.New("the sandbox is closed")}
	}
	return dup(m.scratch)
}

// Close kills QEMU: what a sandbox wrote is either fetched before or not wanted.
func (m *machine) Close() error {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		_ = m.scratch.Close()
	}
	m.mu.Unlock()
	_ = m.process.Kill()
	_ = m.mon.conn.Close()
	<-m.done
	m.live.close()
	return nil
}

func (m *machine) Pause(ctx context.Context) error {
	_, err := m.mon.do(ctx, command{Execute: "stop"})
	return err
}

func (m *machine) Resume(ctx context.Context) error {
	_, err := m.mon.do(ctx, command{Execute: "cont"})
	return err
}

// wait blocks until ready is closed; the machine's end or ctx's end is an error.
func (m *machine) wait(ctx context.Context, ready <-chan struct{}, limit time.Duration) error {
	given := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-ready:
		return nil
	case <-m.done:
		return m.Err()
	case <-ctx.Done():
		err := errLate
		if given.Err() != nil {
			err = given.Err()
		}
		return fmt.Errorf("the guest did not start within %s: %w; its console ends: %q", limit, err, printable(lastLine(m.console.String())))
	}
}

var errLate = errors.New("that is too long")

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// unprivileged is what root's QEMU runs as: nobody, with the group that may use
// KVM. An ordinary user's QEMU runs as that user.
func unprivileged() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	c := &syscall.Credential{Uid: jail.Nobody, Gid: jail.Nobody}
	var st unix.Stat_t
	if unix.Stat(kvmDevice, &st) == nil && st.Gid != 0 {
		c.Groups = []uint32{st.Gid}
	}
	return c
}

func socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "qemu")
	defer func() { _ = mine.Close() }()
	conn, err := net.FileConn(mine)
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return conn, os.NewFile(uintptr(fds[1]), "qemu-peer"), nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	limit int
	mu    sync.Mutex
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
