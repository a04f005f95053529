package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/wire"
)

// A Command is a process to run in a sandbox.
type Command struct {
	Argv []string
	Env  []string // KEY=VALUE, added to the sandbox's environment
	// Secrets are NAME=VALUE, added like Env. In a sandbox of a session they are masked in what is
	// kept of the command.
	Secrets []string

	Cwd  string // empty: the template's working directory
	User string // empty: the user of the template's steps, or root

	Stdin          io.Reader // nil: no input. Reading may outlive the call by one Read.
	Stdout, Stderr io.Writer // nil: discarded. With a terminal only Stdout is used.

	Terminal *wire.ProcessTerminal       // nil: pipes
	Resized  <-chan wire.ProcessTerminal // new sizes of the terminal; may be nil
	Signals  <-chan string               // signals for the process tree, such as "INT"; may be nil

	unsent chan string // signals that a lost connection may not have delivered
}

// killTime bounds the time in which a sandbox confirms that a command was killed.
const killTime = 5 * time.Second

// Exec runs a command and waits for its end. When ctx or this process ends, the command is killed.
// Unless ctx has ended, an error means that the command's outcome is unknown.
func (a *Access) Exec(ctx context.Context, id turnstone.SandboxID,
	cmd Command) (wire.ProcessExit, error) {
	if _, err := secret.New(cmd.Secrets); err != nil { // they could not be masked
		return wire.ProcessExit{}, err
	}
	if a.Linger > 0 {
		return a.persist(ctx, id, cmd)
	}
	i, err := a.Info(ctx, id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	c, err := a.Client(ctx, id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	defer c.Close()
	defer closeAfter(ctx, c)()
	p := cmd.params(i)
	p.KillOnDisconnect = true
	done := make(chan struct{})
	defer close(done)
	cmd.unsent = make(chan string, maxUnsent)
	go cmd.control(c, p.ProcessID, done)
	out, errs := &counter{w: cmd.Stdout}, &counter{w: cmd.Stderr}
	ended, err := c.Start(ctx, p, wire.Stdio{In: cmd.Stdin, Out: out, Err: errs})
	exit := ended.Exit
	if turnstone.KindOf(err) == turnstone.KindDead && ctx.Err() == nil {
		// The connection is lost, and the process with it. The sandbox still has its output until
		// then and its exit status. A fork also ends connections; the process then continues.
		f := &follower{access: a, id: id, process: p.ProcessID, outs: [2]*counter{out, errs}}
		again, followErr := f.run(ctx)
		if ctx.Err() != nil {
			a.kill(context.WithoutCancel(ctx), id, p.ProcessID)
			return again, followErr
		}
		switch {
		case followErr == nil && !again.Killed:
			return again, nil
		case followErr == nil:
			return again, turnstone.Errorf("sandbox.exec", turnstone.KindDead, cmd.Argv[0],
				"killed because the connection to the sandbox was lost").
				WithHint("use -d for a command that outlives its connection")
		}
		return exit, a.EndReason(ctx, id, err)
	}
	if err == nil {
		a.release(ctx, c, p.ProcessID)
	}
	return exit, err
}

// persist is Exec over as many connections as it takes. No output is lost or doubled, and the
// command reads its input once.
func (a *Access) persist(ctx context.Context, id turnstone.SandboxID, cmd Command) (
	wire.ProcessExit, error) {
	p := cmd.params(Sandbox{})
	p.Linger = a.Linger.Milliseconds()
	cmd.unsent = make(chan string, maxUnsent)
	f := &follower{access: a, id: id, process: p.ProcessID, cmd: &cmd, start: &p,
		outs: [2]*counter{{w: cmd.Stdout}, {w: cmd.Stderr}}}
	if cmd.Stdin != nil {
		f.in = newInput(cmd.Stdin)
		defer f.in.close()
	}
	var missing int64
	f.lost = func(_ wire.ProcessStream, n int64) { missing += n }
	exit, err := f.run(ctx)
	switch {
	case ctx.Err() != nil && !f.over:
		a.kill(context.WithoutCancel(ctx), id, p.ProcessID)
	case err == nil && missing > 0:
		err = turnstone.Errorf("sandbox.exec", turnstone.KindIntegrity, cmd.Argv[0],
			"%d bytes of its output were lost with a connection", missing)
	}
	return exit, err
}

// release makes the agent forget a process that has ended. Nothing depends on its answer, which
// would be a round trip at the end of each command.
func (a *Access) release(ctx context.Context, c *wire.Client, process string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	_ = c.Post(ctx, wire.MethodProcessRelease, &wire.ProcessReleaseParams{ProcessID: process})
}

// kill ends a process that should have ended with its lost connection.
func (a *Access) kill(ctx context.Context, id turnstone.SandboxID, process string) {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	c, err := a.Client(ctx, id)
	if err != nil {
		return // the process has ended with its sandbox
	}
	defer c.Close()
	_ = c.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: "KILL"})
}

// StartDetached starts a command without waiting for it and returns its name. The command has no
// standard input. Its output is kept for Attach, up to a bound.
func (a *Access) StartDetached(ctx context.Context, id turnstone.SandboxID,
	cmd Command) (string, error) {
	if _, err := secret.New(cmd.Secrets); err != nil {
		return "", err
	}
	var i Sandbox
	if a.Linger == 0 {
		var err error
		if i, err = a.Info(ctx, id); err != nil {
			return "", err
		}
	}
	c, done, err := a.use(ctx, id)
	if err != nil {
		return "", err
	}
	defer done()
	p := cmd.params(i)
	p.Detach = true
	res, err := c.ProcessStart(ctx, &p)
	if err != nil {
		return "", a.EndReason(ctx, id, err)
	}
	return res.ProcessID, nil
}

// params returns the command for the agent of i.
func (c *Command) params(i Sandbox) wire.ProcessStartParams {
	names := make([]string, len(c.Secrets))
	for i, kv := range c.Secrets {
		names[i], _, _ = strings.Cut(kv, "=")
	}
	return wire.ProcessStartParams{ProcessID: "p" + strings.ToLower(rand.Text()[:12]),
		Argv: c.Argv, Env: slices.Concat(c.Env, c.Secrets), Secrets: names,
		Cwd: cmp.Or(c.Cwd, i.Workdir), User: cmp.Or(c.User, i.User), Terminal: c.Terminal}
}

const (
	// maxUnsent bounds the signals of a command that wait for a connection.
	maxUnsent = 4
	// startPause is the time between two signals to a command that is about to start.
	startPause = 20 * time.Millisecond
)

// control passes on signals and sizes until done. A signal waits for the start of the command, and
// for another connection if this one is lost; sizes before the start, and both after the end, have
// no effect.
func (c *Command) control(to *wire.Client, process string, done <-chan struct{}) {
	ctx := to.Context()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case size := <-c.Resized:
			_ = to.ProcessResize(ctx, &wire.ProcessResizeParams{ProcessID: process,
				Columns: size.Columns, Rows: size.Rows})
		case name := <-c.Signals:
			c.signal(to, process, name, done)
		case name := <-c.unsent:
			c.signal(to, process, name, done)
		}
	}
}

// signal sends a signal to the command, or leaves it to the next connection.
func (c *Command) signal(to *wire.Client, process, name string, done <-chan struct{}) {
	ctx := to.Context()
	for {
		err := to.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: name})
		if kind := turnstone.KindOf(err); ctx.Err() == nil && kind != turnstone.KindDead {
			if kind != turnstone.KindNotFound {
				return
			}
			select {
			case <-time.After(startPause):
				continue
			case <-ctx.Done():
			case <-done:
			}
		}
		select {
		case c.unsent <- name:
		default:
		}
		return
	}
}

// Processes returns a sandbox's running processes and the most recent processes that have ended.
func (a *Access) Processes(ctx context.Context,
	id turnstone.SandboxID) (all []wire.ProcessProcessInfo, err error) {
	err = a.Use(ctx, id, func(c *wire.Client) error {
		res, err := c.ProcessList(ctx)
		if err == nil {
			all = res.Processes
		}
		return err
	})
	return all, err
}
