package sandboxes

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A Command is one process to run in a sandbox.
type Command struct {
	Argv []string
	Env  []string // KEY=VALUE, added to the sandbox's
	Cwd  string   // empty: the template's working directory
	User string   // empty: whom the template's steps run as, or root

	Stdin          io.Reader // nil: nothing. Reading it may outlive the call by one Read.
	Stdout, Stderr io.Writer // nil: thrown away. With a terminal there is Stdout only.

	Terminal *wire.ProcessTerminal       // nil: pipes
	Resized  <-chan wire.ProcessTerminal // sizes that the terminal takes on; may be nil
	Signals  <-chan string               // for its process tree, as "INT"; may be nil
}

// killTime is how long a sandbox has to confirm that a command was killed.
const killTime = 5 * time.Second

// Exec runs a command and waits for its end. When ctx ends, or this process does,
// the command is killed. An error says that how the command ended is not known, but
// for a ctx that ended.
func (s *Store) Exec(ctx context.Context, id turnstone.SandboxID, cmd Command) (wire.ProcessExit, error) {
	i, err := s.Get(id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	c, err := s.client(ctx, id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	defer func() { _ = c.Close() }()
	defer closeAfter(ctx, c)()
	p := cmd.params(i)
	p.KillOnDisconnect = true
	done := make(chan struct{})
	defer close(done)
	go cmd.control(c, p.ProcessID, done)
	out, errs := &counter{w: cmd.Stdout}, &counter{w: cmd.Stderr}
	ended, err := c.Start(ctx, p, wire.Stdio{In: cmd.Stdin, Out: out, Err: errs})
	exit := ended.Exit
	if turnstone.KindOf(err) == turnstone.KindDead && ctx.Err() == nil {
		// The connection is gone, and with it the process. What it wrote until then,
		// and how it ended, is still to be had where the sandbox lives.
		// A fork ends connections too, and then the process goes on.
		again, followErr := s.follow(ctx, id, p.ProcessID, [2]*counter{out, errs}, nil)
		if ctx.Err() != nil {
			s.kill(context.WithoutCancel(ctx), id, p.ProcessID)
			return again, followErr
		}
		switch {
		case followErr == nil && !again.Killed:
			return again, nil
		case followErr == nil:
			return again, turnstone.Errorf("sandbox.exec", turnstone.KindDead, cmd.Argv[0],
				"killed, for the connection to the sandbox was lost").
				WithHint("with -d a command outlives its connection")
		}
		return exit, s.fate(id, err)
	}
	if err == nil {
		_ = c.ProcessRelease(context.WithoutCancel(ctx), &wire.ProcessReleaseParams{ProcessID: p.ProcessID})
	}
	return exit, err
}

// kill ends a process that has lost the connection with which it was to end.
func (s *Store) kill(ctx context.Context, id turnstone.SandboxID, process string) {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	c, err := s.client(ctx, id)
	if err != nil {
		return // it has ended with its sandbox
	}
	defer func() { _ = c.Close() }()
	_ = c.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: "KILL"})
}

// StartDetached starts a command that nobody waits for, and returns its name. It
// has no standard input, and its output is kept for Attach, up to a bound.
func (s *Store) StartDetached(ctx context.Context, id turnstone.SandboxID, cmd Command) (string, error) {
	i, err := s.Get(id)
	if err != nil {
		return "", err
	}
	c, err := s.client(ctx, id)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	p := cmd.params(i)
	p.Detach = true
	res, err := c.ProcessStart(ctx, &p)
	if err != nil {
		return "", s.fate(id, err)
	}
	return res.ProcessID, nil
}

// params is the command as the agent of i gets it.
func (c *Command) params(i Info) wire.ProcessStartParams {
	return wire.ProcessStartParams{ProcessID: "p" + strings.ToLower(rand.Text()[:12]), Argv: c.Argv, Env: c.Env,
		Cwd: cmp.Or(c.Cwd, i.Workdir), User: cmp.Or(c.User, i.User), Terminal: c.Terminal}
}

// control passes signals and sizes on until done. Those that come too late, or too
// early, have no effect.
func (c *Command) control(to *wire.Client, process string, done <-chan struct{}) {
	ctx := to.Context()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case size := <-c.Resized:
			_ = to.ProcessResize(ctx, &wire.ProcessResizeParams{ProcessID: process, Columns: size.Columns, Rows: size.Rows})
		case name := <-c.Signals:
			_ = to.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: name})
		}
	}
}

// Processes returns the processes that run in a sandbox, and the latest that have
// ended.
func (s *Store) Processes(ctx context.Context, id turnstone.SandboxID) ([]wire.ProcessProcessInfo, error) {
	c, err := s.client(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	res, err := c.ProcessList(ctx)
	if err != nil {
		return nil, s.fate(id, err)
	}
	return res.Processes, nil
}

// Attach copies what a process has written, as far as it is kept, and writes until
// it ends. When the connection is lost it goes on where it was. lost is told how
// many bytes of which output are not kept any more. When ctx ends the process goes
// on.
func (s *Store) Attach(ctx context.Context, id turnstone.SandboxID, process string, stdout, stderr io.Writer, lost func(stream wire.ProcessStream, bytes int64)) (wire.ProcessExit, error) {
	return s.follow(ctx, id, process, [2]*counter{{w: stdout}, {w: stderr}}, lost)
}

const (
	// maxRetries bounds how often a lost connection is made again without any
	// byte having come in between.
	maxRetries = 5
	retryDelay = 200 * time.Millisecond
)

// follow is Attach from the offsets that outs have reached.
func (s *Store) follow(ctx context.Context, id turnstone.SandboxID, process string, outs [2]*counter, lost func(wire.ProcessStream, int64)) (wire.ProcessExit, error) {
	for failures := 0; ; failures++ {
		before := outs[0].n + outs[1].n
		exit, err := s.followOnce(ctx, id, process, outs, lost)
		if err == nil || turnstone.KindOf(err) != turnstone.KindDead || ctx.Err() != nil {
			return exit, err
		}
		if outs[0].n+outs[1].n > before {
			failures = 0
		}
		if i, getErr := s.Get(id); getErr != nil || i.State.Final() || failures == maxRetries {
			return exit, s.fate(id, err)
		}
		select {
		case <-ctx.Done():
			return exit, canceled(ctx, "sandbox.attach")
		case <-time.After(retryDelay):
		}
	}
}

func (s *Store) followOnce(ctx context.Context, id turnstone.SandboxID, process string, outs [2]*counter, lost func(wire.ProcessStream, int64)) (wire.ProcessExit, error) {
	c, err := s.client(ctx, id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	var in [2]*wire.Receiver
	p := wire.ProcessAttachParams{ProcessID: process, StdoutOffset: outs[0].n, StderrOffset: outs[1].n,
		StdoutStream: c.NewStream(), StderrStream: c.NewStream()}
	for n, stream := range []wire.StreamID{p.StdoutStream, p.StderrStream} {
		if in[n], err = c.Receiver(stream); err != nil {
			return wire.ProcessExit{}, err
		}
	}
	res, err := c.ProcessAttach(ctx, &p)
	if err != nil {
		return wire.ProcessExit{}, orCanceled(ctx, err)
	}
	for n, from := range []int64{res.StdoutOffset, res.StderrOffset} {
		if gap := from - outs[n].n; gap > 0 {
			outs[n].n = from
			if lost != nil {
				lost([]wire.ProcessStream{wire.ProcessStreamStdout, wire.ProcessStreamStderr}[n], gap)
			}
		}
	}
	copied := make(chan error, 2)
	for n := range in {
		go func() {
			_, err := io.Copy(outs[n], in[n])
			copied <- err
		}()
	}
	err = <-copied
	if err != nil {
		_ = c.Close() // ends the other one
	}
	if second := <-copied; err == nil {
		err = second
	}
	if err != nil {
		return wire.ProcessExit{}, orCanceled(ctx, err)
	}
	end, err := c.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: process})
	if err != nil {
		return wire.ProcessExit{}, orCanceled(ctx, err)
	}
	return end.Exit, nil
}

func orCanceled(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return canceled(ctx, "sandbox.attach")
	}
	return err
}

// client opens a connection for one task.
func (s *Store) client(ctx context.Context, id turnstone.SandboxID) (*wire.Client, error) {
	conn, err := s.Dial(ctx, id)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(conn), nil
}

// closeAfter closes c when ctx has ended and the sandbox does not do what it is
// asked for soon after.
func closeAfter(ctx context.Context, c *wire.Client) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		select {
		case <-c.Done():
		case <-time.After(killTime):
			_ = c.Close()
		}
	})
}

// fateTime is how long a holder may take to write down why its machine ended.
const fateTime = 2 * time.Second

// fate prefers what is known of a sandbox's end to what its end looked like from
// the connection.
func (s *Store) fate(id turnstone.SandboxID, err error) error {
	if turnstone.KindOf(err) != turnstone.KindDead {
		return err
	}
	for until := time.Now().Add(fateTime); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		i, getErr := s.Get(id)
		if turnstone.KindOf(getErr) == turnstone.KindNotFound {
			return turnstone.Errorf("sandbox.use", turnstone.KindDead, "sandbox "+string(id),
				"it was removed")
		}
		if getErr == nil && i.State.Final() {
			return turnstone.Errorf("sandbox.use", turnstone.KindDead, "sandbox "+i.Title(),
				"it is %s: %s", i.State, i.Reason).WithHint("turn sandbox create makes a new one")
		}
	}
	return err
}

// A counter counts the bytes that it passes on, and keeps the error that ends that.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	if c.w != nil {
		if _, c.err = c.w.Write(p); c.err != nil {
			return 0, c.err
		}
	}
	c.n += int64(len(p))
	return len(p), nil
}
