package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/subprocess"
)

// files are the open files of a machine. A nil file is not passed.
type files struct {
	ram, root, scratch, kernel, initramfs *os.File

	home   *os.File
	layers []*os.File
}

// list returns the files in the order of their descriptors.
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

// machine is a running QEMU. It implements substrate.Sandbox and Pauser.
type machine struct {
	*kit.Process
	mon     *monitor
	agent   net.Conn
	card    net.Conn // the host's end of the network card; nil: no card
	stderr  complaints
	noKVM   chan struct{} // closed when KVM has turned the machine away
	live    *live         // for Snapshot; set before another goroutine has the machine
	scratch *os.File      // the disk that stores the writes; closed with the machine
	wall    host.Wall     // QEMU's confinement
	heard   chan struct{} // closed when the console has been read to its end
	halted  chan struct{} // closed when the guest has stopped its machine
}

// start runs QEMU with a machine of the given shape. It takes ownership of f's files.
func (s *Substrate) start(shape turnstone.Shape, args []string, f files) (*machine, error) {
	defer f.close()
	m := &machine{Process: kit.New(turnstone.NewSandboxID(), console.New(), s.kernel.Advice()),
		wall: s.wall.Wall, heard: make(chan struct{}), halted: make(chan struct{})}
	m.stderr.Limit, m.stderr.fault, m.noKVM = 8<<10, m.turnedAway, make(chan struct{})
	if f.initramfs == nil { // only a boot has an initramfs
		m.Console = console.Running()
	}
	var err error
	if m.scratch, err = kit.Dup(f.scratch); err != nil {
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
	cmd, release, err := s.command(m.wall, shape, f.home != nil, args,
		append(append([]*os.File{}, theirs...), f.list()...))
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

// spawn starts cmd; the machine ends with cmd.
func (m *machine) spawn(cmd *exec.Cmd) error {
	if err := m.Start(cmd, subprocess.Options{Ended: m.ended}); err != nil {
		return err
	}
	go m.endWithKVM()
	return nil
}

// drainWait bounds the time for reading a machine's last output.
const drainWait = time.Second

// ended records why the process has ended.
func (m *machine) ended(wait error) {
	select {
	case <-m.heard: // its last output may explain the end
	case <-time.After(drainWait):
	}
	_ = m.agent.Close()
	if m.card != nil {
		_ = m.card.Close()
	}
	m.End(func() error { return m.explain(wait) })
}

// explain converts an unrequested end to an error for the user.
func (m *machine) explain(wait error) error {
	e := turnstone.NewError("qemu.run", turnstone.KindDead, string(m.ID()), nil)
	switch fault := m.Console.Fault(); {
	case fault != nil:
		e.Err, e.Hint = fault, m.Hint()
	case busError(wait):
		// Its memory is a file: a page without space on the disk ends it this way.
		e.Kind, e.Hint = turnstone.KindExhausted,
			"free some space on the disk that contains TURN_HOME"
		e.Err = errors.New("the host's disk is full: it has no space for the guest's memory")
	case jail.FailureOf(m.stderr.String(), wait) != nil:
		e.Kind, e.Hint, e.Err = turnstone.KindUnavailable, "run `turn doctor`",
			jail.FailureOf(m.stderr.String(), wait)
	case strings.TrimSpace(m.stderr.String()) != "":
		e.Err = fmt.Errorf("QEMU ended: %s",
			console.Printable(strings.TrimSpace(m.stderr.String())))
	case wait != nil:
		e.Err = fmt.Errorf("QEMU ended: %w", wait)
	case m.Starting():
		e.Err, e.Hint = endedEarly{}, m.Hint()
	default:
		e.Err = fmt.Errorf("the guest shut its machine down%s", m.Console.Words())
	}
	return e
}

// An endedEarly may also be a triple fault: QEMU ends with the machine's first reset.
type endedEarly struct{}

func (endedEarly) Error() string {
	return "the guest reset its machine, or shut it down, before its agent was ready"
}

// Is reports whether target is the error for this end under KVM.
func (endedEarly) Is(target error) bool { return target == kvm.ErrBroken }

func busError(wait error) bool {
	var exit *exec.ExitError
	if !errors.As(wait, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGBUS
}

// event handles QEMU's events. A disk write that failed because the host's disk is full stops the
// machine, which would wait forever.
func (m *machine) event(e event) {
	switch e.Name {
	case "GUEST_PANICKED":
		select {
		case <-m.halted:
			m.stopped()
		default:
			close(m.halted)
		}
		return
	case "GUEST_CRASHLOADED": // it stops nothing, so a guest could send it without end
		m.stopped()
		return
	case "BLOCK_IO_ERROR":
	default:
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
	if data.NoSpace {
		m.Blame(turnstone.Errorf("qemu.run", turnstone.KindExhausted, string(m.ID()),
			"the host's disk is full").
			WithHint("free some space on the disk that contains TURN_HOME, or lower the " +
				"sandbox's disk"))
	} else {
		m.Blame(turnstone.Errorf("qemu.run", turnstone.KindDead, string(m.ID()),
			"the host's disk fails: %s", data.Reason))
	}
	_ = m.Kill()
}

func (m *machine) readConsole(conn net.Conn) {
	defer conn.Close()
	defer close(m.heard)
	_, _ = io.Copy(m.Console, conn)
}

func (m *machine) Agent() io.ReadWriteCloser { return m.agent }
func (m *machine) Scratch() string           { return scratchSerial }

// Frames implements substrate.Networker.
func (m *machine) Frames() (io.ReadWriteCloser, error) {
	if m.card == nil {
		return nil, turnstone.Errorf("qemu.network", turnstone.KindInvalid, string(m.ID()),
			"the machine has no network card")
	}
	return m.card, nil
}

// Disk implements substrate.Disker.
func (m *machine) Disk() (*os.File, error) { return m.Dup("qemu.disk", m.scratch) }

// Close kills QEMU: the caller has already fetched the sandbox's writes, or does not need them.
func (m *machine) Close() error {
	_ = m.Process.Close()
	_ = m.mon.conn.Close()
	_ = m.scratch.Close()
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

// wait blocks until the agent is ready.
func (m *machine) wait(ctx context.Context, p console.Patience) error {
	return m.Wait(ctx, "qemu.boot", p, func() (console.Load, error) { return host.Load(m.PID()) })
}

// patience returns how long a guest may take to start: under TCG up to three seconds. A busy host
// has other bounds than an idle host.
func (a accel) patience() console.Patience {
	if a == accelKVM {
		return kvm.Patience()
	}
	return console.Patience{Idle: 30 * time.Second, Work: time.Minute, Limit: 5 * time.Minute}
}

// unprivileged returns the user of root's QEMU: nobody, with the group that may use KVM. An
// ordinary user's QEMU runs as that user.
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
	defer mine.Close()
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
