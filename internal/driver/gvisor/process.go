package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/subprocess"
)

// environment is all that runsc gets of ours.
var environment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}

// attributes are how runsc is started. By root it is started as root, and gives its rights
// away itself; by anybody else as root of a user namespace with nobody else in it. What it
// starts ends with it.
func attributes(rootless bool) *syscall.SysProcAttr {
	a := new(syscall.SysProcAttr)
	if rootless {
		a.Cloneflags = syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// rootless says whether runsc has to do without root.
func rootless() bool { return os.Geteuid() != 0 }

// command returns a runsc of the sandbox in dir.
func (s *Substrate) command(dir string, args ...string) *exec.Cmd {
	unprivileged := rootless()
	cmd := exec.Command(s.binary, append(flags(unprivileged), args...)...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, environment, attributes(unprivileged)
	return cmd
}

// control runs a short runsc that speaks to a sandbox's process.
func (v *sandbox) control(ctx context.Context, args ...string) error {
	cmd := v.substrate.command(v.dir, args...)
	out := tail{limit: 8 << 10}
	cmd.Stdout, cmd.Stderr = &out, &out
	err := subprocess.Run(ctx, cmd, subprocess.Options{})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, printable(strings.TrimSpace(out.String())))
	}
	return err
}

// start makes a sandbox's folder and starts runsc there with the verb and its arguments.
// Nothing is waited for: the agent speaks when it is there. start takes ownership of in.
func (s *Substrate) start(ctx context.Context, in *images, shape turnstone.Shape, verb string, args ...string) (_ *sandbox, err error) {
	defer in.close()
	v, err := s.newSandbox(ctx, shape)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			v.remove()
		}
	}()
	config, err := spec(v.dir, in.paths(), shape)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(v.dir, "config.json"), config, 0o600); err != nil {
		return nil, err
	}
	if err := in.linkCheckpoint(v.dir); err != nil {
		return nil, err
	}
	args = append(append([]string{verb, "--bundle=" + v.dir, "--pid-file=" + pidFile}, args...), string(v.id))
	cmd := s.command(v.dir, args...)
	cmd.ExtraFiles = in.list()
	var ends [3]pipeEnds
	for i := range ends {
		if ends[i].r, ends[i].w, err = os.Pipe(); err != nil {
			closePipes(ends[:i])
			return nil, err
		}
	}
	for _, e := range ends[:2] {
		enlarge(e.w)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends[0].r, ends[1].w, ends[2].w
	v.agent = &agentPipe{v: v, r: ends[1].r, w: ends[0].w}
	if err := subprocess.Start(cmd, subprocess.Options{Ended: v.ended}); err != nil {
		closePipes(ends[:])
		return nil, err
	}
	v.process = cmd.Process
	_, _, _ = ends[0].r.Close(), ends[1].w.Close(), ends[2].w.Close()
	close(v.running)
	go v.readConsole(ends[2].r)
	go v.watch()
	return v, nil
}

// pidFile is where runsc writes the id of the sandbox's process.
const pidFile = "pid"

// pipeSize is the size of the agent's pipes, in bytes: what everybody may have (pipe(7)).
const pipeSize = 1 << 20

// enlarge gives a pipe that size. What goes through is large as often as not; a user who
// has many pipes gets small ones, and nothing else changes. Fd would make reads block.
func enlarge(pipe *os.File) {
	if c, err := pipe.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	}
}

type pipeEnds struct{ r, w *os.File }

func closePipes(ends []pipeEnds) {
	for _, e := range ends {
		_, _ = e.r.Close(), e.w.Close()
	}
}

// readyLine is what the agent prints on the console when a checkpoint may be taken, and
// failedLine what begins the line with which it gives up.
var (
	readyLine  = []byte("turnstone-agent: ready")
	failedLine = []byte("turnstone-agent: failed: ")
)

// Of a sandbox's console so many bytes are read at once, and so many a second then. What
// is written faster waits.
const (
	consoleBurst = 1 << 20
	consoleRate  = 256 << 10
)

// readConsole reads what the agent and runsc say. Its end is the end of all that could
// say more: of the sandbox's process too.
func (v *sandbox) readConsole(r *os.File) {
	defer close(v.silent)
	defer func() { _ = r.Close() }()
	const keep = 64
	buf := make([]byte, keep+4096)
	seen, have := false, 0
	for took := 0; ; {
		n, err := r.Read(buf[have:])
		if took += n; took > consoleBurst { // root in the sandbox may write as much as it likes
			time.Sleep(time.Duration(n) * time.Second / consoleRate)
		}
		_, _ = v.console.Write(buf[have : have+n])
		have += n
		switch {
		case seen:
		case bytes.Contains(buf[:have], readyLine):
			seen = true
			close(v.ready)
		case bytes.Contains(buf[:have], failedLine):
			seen = true
			_ = v.process.Kill() // its end tells why, from the console
		}
		have = copy(buf, buf[max(0, have-keep):have])
		if err != nil {
			return
		}
	}
}

// lingering is how long the sandbox's process may take to be gone after runsc is. It
// gets SIGKILL with runsc's end.
const lingering = 5 * time.Second

// ended records why runsc is gone, once the sandbox's process is gone too.
func (v *sandbox) ended(wait error) {
	<-v.running
	select {
	case <-v.silent:
	case <-time.After(lingering):
	}
	v.mu.Lock()
	if !v.closed {
		v.err = v.explain(wait)
	}
	v.mu.Unlock()
	v.agent.end()
	v.remove()
	close(v.done)
}

// explain turns an end nobody asked for into an error for the user.
func (v *sandbox) explain(wait error) error {
	if v.cause != nil {
		return v.cause
	}
	e := turnstone.NewError("gvisor.run", turnstone.KindDead, string(v.id), nil)
	said := printable(lastLine(v.console.String()))
	var exit *exec.ExitError
	switch {
	case !v.spoke.Load() && said != "":
		e.Err = fmt.Errorf("it did not start: %s", said)
		e.Hint = "run `turn doctor`"
	case errors.As(wait, &exit) && said != "":
		e.Err = fmt.Errorf("it ended (%w): %s", wait, said)
	case wait != nil:
		e.Err = fmt.Errorf("it ended: %w", wait)
	default:
		e.Err = errors.New("its agent ended")
	}
	return e
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// printable keeps what a hostile sandbox says out of the terminal's hands.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\t':
			return ' '
		case r < 0x20, r == 0x7f, r > 0x7e:
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 500)]
}
