package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
)

// ParseSignal parses a signal's name, with or without SIG, or its number.
func ParseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if s := unix.SignalNum(name); s != 0 {
		return s, nil
	}
	return 0, turnstone.Errorf("Process.signal", turnstone.KindInvalid, brief.Subject(text),
		"no such signal").WithHint("use a name such as SIGTERM, or a number from 1 to 64")
}

// Signal sends a signal to the process and all its descendants. An ended process and its background
// processes are not signaled: the error is then of kind NotFound.
func (p *Process) Signal(sig syscall.Signal) error {
	p.using.Lock()
	defer p.using.Unlock()
	if p.Ended() {
		return p.hasEnded("Process.signal")
	}
	if sig == syscall.SIGKILL {
		p.killed.Store(true)
		if p.group != nil && p.group.kill() == nil {
			_ = syscall.Kill(p.PID, sig) // root may have left the group
			return nil
		}
	} else if p.group != nil && p.group.signal(sig) == nil {
		return nil
	}
	signalSession(p.PID, sig)
	return nil
}

func (p *Process) hasEnded(op turnstone.Op) error {
	return turnstone.Errorf(op, turnstone.KindNotFound, p.ID, "the process has ended").
		WithHint("see how it ended with Process.wait")
}

// freezeTime bounds the time for freezing a group before it is signaled without freezing.
const freezeTime = 200 * time.Millisecond

// signal sends a signal to every process of the group. They are frozen meanwhile, so that no forked
// process is missed.
func (c *cgroup) signal(sig syscall.Signal) error {
	frozen := filepath.Join(c.dir, "cgroup.freeze")
	if writeFile(frozen, "1") == nil {
		defer func() { _ = writeFile(frozen, "0") }()
		for deadline := time.Now().Add(freezeTime); !c.frozen() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	return eachProcess(c.dir, 0, func(pid int) { _ = syscall.Kill(pid, sig) })
}

func (c *cgroup) frozen() bool {
	var buf [256]byte
	n, err := ReadSmall(filepath.Join(c.dir, "cgroup.events"), buf[:])
	return err != nil || strings.Contains(string(buf[:n]), "frozen 1")
}

// maxGroups bounds the depth of groups that a process created below its own.
const maxGroups = 8

// eachProcess calls f for each process of a group and of the groups below.
func eachProcess(dir string, depth int, f func(pid int)) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for line := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 1 {
			f(pid)
		}
	}
	if depth == maxGroups {
		return nil
	}
	below, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range below {
		if e.IsDir() {
			_ = eachProcess(filepath.Join(dir, e.Name()), depth+1, f)
		}
	}
	return nil
}

// signalSession is for an agent without control groups: it reaches the process's own group, and the
// other groups of its session.
func signalSession(pid int, sig syscall.Signal) {
	_ = syscall.Kill(-pid, sig)
	procs, _ := procFS{}.processes()
	for _, other := range procs {
		if other == 1 {
			continue
		}
		if sid, err := unix.Getsid(other); err != nil || sid != pid {
			continue
		}
		if group, err := unix.Getpgid(other); err == nil && group != pid {
			_ = syscall.Kill(other, sig)
		}
	}
}
