package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/subprocess"
)

// environment is runsc's whole environment.
var environment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}

// attributes returns how runsc is started. Root starts it as root, and runsc gives up its rights
// itself; other users start it as root of a user namespace without other users. The processes that
// it starts end with it.
func attributes(rootless bool) *syscall.SysProcAttr {
	a := new(syscall.SysProcAttr)
	if rootless {
		a.Cloneflags = syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// rootless reports whether runsc runs without root.
func rootless() bool { return os.Geteuid() != 0 }

// command returns a runsc of the sandbox in dir.
func (s *Substrate) command(dir string, args ...string) *exec.Cmd {
	unprivileged := rootless()
	cmd := exec.Command(s.binary, append(flags(unprivileged), args...)...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, environment, attributes(unprivileged)
	return cmd
}

// control runs a short runsc command for a sandbox's process.
func (v *sandbox) control(ctx context.Context, args ...string) error {
	cmd := v.substrate.command(v.dir, args...)
	out := console.Tail{Limit: 8 << 10}
	cmd.Stdout, cmd.Stderr = &out, &out
	err := subprocess.Run(ctx, cmd, subprocess.Options{})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, console.Clip(out.String(), maxSaid))
	}
	return err
}

// start creates a sandbox's folder and starts runsc there with the verb and its arguments. It does
// not wait: the agent speaks when it is ready. start takes ownership of in.
func (s *Substrate) start(ctx context.Context, in *images, shape turnstone.Shape, verb string,
	args ...string) (_ *sandbox, err error) {
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
	if in.checkpoint != nil {
		v.Console = console.Running()
	}
	args = append(append([]string{verb, "--bundle=" + v.dir, "--pid-file=" + pidFile}, args...),
		string(v.ID()))
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
	if err := v.Start(cmd, subprocess.Options{Ended: v.ended}); err != nil {
		closePipes(ends[:])
		return nil, err
	}
	_, _, _ = ends[0].r.Close(), ends[1].w.Close(), ends[2].w.Close()
	go v.readConsole(ends[2].r)
	go v.watch()
	return v, nil
}

// pidFile is where runsc writes the ID of the sandbox's process.
const pidFile = "pid"

// pipeSize is the size of the agent's pipes, in bytes: the limit for unprivileged users (pipe(7)).
const pipeSize = 1 << 20

// enlarge sets a pipe's size to pipeSize. Much of the traffic is large; a user who has many pipes
// gets small pipes, and everything else works. Fd would make reads block.
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

// The bytes of a sandbox's console that are read at once, and afterwards per second. Faster writers
// wait.
const (
	consoleBurst = 1 << 20
	consoleRate  = 256 << 10
)

// readConsole reads the output of the agent and runsc. It ends when all writers have ended,
// including the sandbox's process.
func (v *sandbox) readConsole(r *os.File) {
	defer close(v.silent)
	defer r.Close()
	_, _ = io.Copy(v.Console, &slowed{r: r})
}

// slowed bounds the speed of reads: root in the sandbox may write without limit.
type slowed struct {
	r    io.Reader
	took int
}

func (s *slowed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if s.took += n; s.took > consoleBurst {
		time.Sleep(time.Duration(n) * time.Second / consoleRate)
	}
	return n, err
}

// lingering is how long the sandbox's process may outlive runsc. It gets SIGKILL when runsc ends.
const lingering = 5 * time.Second

// ended records why runsc has ended, after the sandbox's process has ended too.
func (v *sandbox) ended(wait error) {
	select {
	case <-v.silent:
	case <-time.After(lingering):
	}
	v.agent.end()
	v.remove()
	v.End(func() error { return v.explain(wait) })
}

// explain converts an unrequested end to an error for the user.
func (v *sandbox) explain(wait error) error {
	e := turnstone.NewError("gvisor.run", turnstone.KindDead, string(v.ID()), nil)
	said := console.Clip(console.LastLine(v.Console.String()), maxSaid)
	var exit *exec.ExitError
	switch {
	case !v.spoke.Load() && said != "":
		e.Err = fmt.Errorf("it did not start: %s", said)
		e.Hint = advice
	case errors.As(wait, &exit) && said != "":
		e.Err = fmt.Errorf("it ended (%w): %s", wait, said)
	case wait != nil:
		e.Err = fmt.Errorf("it ended: %w", wait)
	default:
		e.Err = errors.New("its agent ended")
	}
	return e
}

// maxSaid bounds the quoted output of runsc and the agent, in bytes.
const maxSaid = 500
