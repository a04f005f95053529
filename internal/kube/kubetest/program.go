package kubetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// A Program is started, ended or killed, and perhaps started again. The end of its output is kept in memory.
type Program struct {
	Path string
	Args []string
	Env  []string // beside this process's
	Dir  string
	// Grace is the time from TERM to KILL; 0: a minute.
	Grace time.Duration

	cmd  *exec.Cmd
	done chan struct{}
	out  tail
}

// Start starts the program.
func (p *Program) Start() error {
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Dir, &p.out, &p.out
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second //wait: of output that children hold open
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() { _ = cmd.Wait(); close(done) }()
	return nil
}

// End asks the program to end, and kills it after its grace. It does nothing to nil, or to one that has ended.
func (p *Program) End() {
	if p == nil || p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	grace := p.Grace
	if grace == 0 {
		grace = time.Minute
	}
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// Kill kills the program, as a machine does that loses its power.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// PID returns the ID of the program's process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process that was started last has ended.
func (p *Program) Done() <-chan struct{} { return p.done }

// Log returns the end of what the program has printed. It is safe for concurrent use.
func (p *Program) Log() string {
	if p == nil {
		return ""
	}
	return p.out.String()
}

// Printed waits until the program has printed a line of a pattern, as it does when it has started, and returns the pattern's
// group.
func (p *Program) Printed(ctx context.Context, what *regexp.Regexp) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		if m := what.FindStringSubmatch(p.Log()); m != nil {
			return m[1], nil
		}
		select {
		case <-p.done:
			return "", fmt.Errorf("%s has ended: %s", filepath.Base(p.Path), p.Log())
		case <-ctx.Done():
			return "", fmt.Errorf("%s does not start: %s", filepath.Base(p.Path), p.Log())
		case <-time.After(50 * time.Millisecond): //wait: the loop polls
		}
	}
}

// Address waits until a turn-server listens at the loopback, and returns where.
func (p *Program) Address(ctx context.Context) (string, error) {
	return p.Printed(ctx, regexp.MustCompile(`listeners="\[(127\.0\.0\.1:\d+)`))
}

// A tail keeps the last bytes that are written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const maxTail = 256 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if n := t.buf.Len() - maxTail; n > 0 {
		t.buf.Next(n)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
