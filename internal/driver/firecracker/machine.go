package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/jail"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// machine is a running Firecracker, or the shell above its jailer.
type machine struct {
	*kit.Process
	cell    *cell
	api     *client
	agent   *channel
	wall    host.Wall // its confinement
	owner   uint32    // the user who owns its files
	cgroup  string    // to be removed after the end; empty: none
	stderr  console.Tail
	origin  origin   // set before another goroutine has the machine
	scratch *os.File // the disk that stores the writes; closed with the machine
	memory  memory   // the base of its memory; for snapshots of the running machine
	rooted  error    // why it must not be paused; see release.standstill

	snapping sync.Mutex    // one snapshot at a time
	stood    time.Duration // how long the latest snapshot paused a running guest
	cleaning sync.Once
	severed  atomic.Bool // a snapshot has reset the channel
}

// origin is what a machine was started from, for a snapshot of it.
type origin struct {
	id     identity
	layers []string // paths of its layers' images
	home   bool     // it has a home disk, which has one writer
}

func newMachine(id turnstone.SandboxID, c *cell) *machine {
	m := &machine{Process: kit.New(id, console.New(), ""), cell: c, owner: uint32(os.Geteuid()),
		agent: new(channel)}
	m.stderr.Limit = 8 << 10
	m.api = newClient(func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, apiSocket) })
	return m
}

// ended records why the process has ended.
func (m *machine) ended(wait error) {
	_ = m.agent.Close()
	m.End(func() error { return m.explain(wait) })
}

var errorLine = lazyregexp.New(
	`(?m)^.*\[sb-[^\]]{0,200}:ERROR[^\]]{0,200}\] (.{1,300})|^Error: (.{1,300})`)

// exits are the exit codes that tell why Firecracker ended (its FcExitCode).
var exits = map[int]string{
	148: "it made a system call that its seccomp filter forbids",
	149: "SIGBUS: a file that it has mapped has become shorter, or the disk is full",
	150: "SIGSEGV", 151: "a file grew past its limit", 152: "its configuration is bad",
	153: "its arguments are bad",
}

// explain converts an unrequested end to an error for the user.
func (m *machine) explain(wait error) error {
	e := turnstone.NewError("firecracker.run", turnstone.KindDead, string(m.ID()), nil)
	stderr := strings.TrimSpace(m.stderr.String())
	code := -1
	var exit *exec.ExitError
	if errors.As(wait, &exit) {
		code = exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() &&
			status.Signal() == syscall.SIGBUS {
			code = 149
		}
	}
	notJailed := jail.FailureOf(stderr, wait)
	fault := lastFault(m.Console.String() + "\n" + stderr)
	switch guest := m.Console.Fault(); {
	case guest != nil:
		e.Err, e.Hint = guest, m.Hint()
	case notJailed != nil:
		e.Err = notJailed
	case exits[code] != "":
		e.Err = fmt.Errorf("firecracker ended: %s", exits[code])
	case wait != nil && fault != "":
		e.Err = fmt.Errorf("firecracker ended: %s", fault)
	case wait != nil && stderr != "":
		e.Err = fmt.Errorf("firecracker ended: %s", console.Clip(console.LastLine(stderr),
			maxMessage))
	case wait != nil:
		e.Err = fmt.Errorf("firecracker ended: %w", wait)
	default:
		e.Err, e.Hint = fmt.Errorf("the guest shut its machine down%s", m.Console.Words()), m.Hint()
	}
	return e
}

// lastFault returns the last error that Firecracker or its jailer has printed, except the message
// that it exits.
func lastFault(text string) string {
	fault := ""
	for _, line := range errorLine.FindAllStringSubmatch(text, -1) {
		said := line[1] + line[2]
		if fault == "" || !strings.HasPrefix(said, "Firecracker exiting") &&
			!strings.HasPrefix(said, "RunWithApi") {
			fault = said
		}
	}
	return console.Clip(fault, maxMessage)
}

func (m *machine) Agent() io.ReadWriteCloser { return m.agent }
func (m *machine) Scratch() string           { return scratchName }

// Disk implements substrate.Disker.
func (m *machine) Disk() (*os.File, error) { return m.Dup("firecracker.disk", m.scratch) }

// Close kills Firecracker: the caller has already fetched the sandbox's writes, or does not need
// them. It returns when nothing is left, also in concurrent calls.
func (m *machine) Close() error {
	_ = m.Process.Close()
	m.cleaning.Do(func() {
		m.snapping.Lock() // a snapshot in progress ends with Firecracker
		defer m.snapping.Unlock()
		m.api.close()
		m.removeCgroup()
		m.cell.remove()
		_ = m.scratch.Close()
		m.memory.close()
	})
	return nil
}

// removeCgroup removes the control group that the jailer created. The last process leaves it a
// moment after its end.
func (m *machine) removeCgroup() {
	if m.cgroup == "" {
		return
	}
	for range 200 {
		if err := os.Remove(m.cgroup); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Pause implements substrate.Pauser.
func (m *machine) Pause(ctx context.Context) error {
	if m.rooted != nil {
		return m.rooted
	}
	return m.told(m.api.send(ctx, stateRequest(statePaused)))
}

// Resume implements substrate.Pauser.
func (m *machine) Resume(ctx context.Context) error {
	if err := m.api.send(ctx, stateRequest(stateResumed)); err != nil {
		return m.told(err)
	}
	if m.severed.Swap(false) {
		return m.told(m.connect(ctx))
	}
	return nil
}

// why returns the machine's own reason for its end if it has a reason, and err otherwise. After a
// broken connection, the process may end a moment later.
func (m *machine) why(err error) error {
	var refused *apiError
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return m.Why(err)
}

// told returns why's error in the type that callers of a machine get.
func (m *machine) told(err error) error {
	var e *turnstone.Error
	if err = m.why(err); err == nil || errors.As(err, &e) {
		return err
	}
	return turnstone.Classify("firecracker.run", turnstone.KindUnavailable, string(m.ID()), err, "")
}

// wait blocks until the agent is ready.
func (m *machine) wait(ctx context.Context, p console.Patience) error {
	return m.Wait(ctx, "firecracker.boot", p, m.load)
}

// load returns Firecracker's use of the host.
func (m *machine) load() (console.Load, error) {
	pid, err := m.pid()
	if err != nil {
		return console.Load{}, err
	}
	return host.Load(pid)
}

// pid returns Firecracker's process ID: a process below the shell if its jailer has started it.
func (m *machine) pid() (int, error) {
	if m.wall != byJailer {
		return m.PID(), nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.PID(), m.PID()))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
