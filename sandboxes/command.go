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

// A Command is a process to run in a sandbox.
type Command struct {
	Argv []string
	Env  []string // KEY=VALUE, added to the sandbox's environment
	Cwd  string   // empty: the template's working directory
	User string   // empty: the user of the template's steps, or root

	Stdin          io.Reader // nil: no input. Reading may outlive the call by one Read.
	Stdout, Stderr io.Writer // nil: discarded. With a terminal only Stdout is used.

	Terminal *wire.ProcessTerminal       // nil: pipes
	Resized  <-chan wire.ProcessTerminal // new sizes of the terminal; may be nil
	Signals  <-chan string               // signals for the process tree, such as "INT"; may be nil
}

// killTime bounds the time in which a sandbox confirms that a command was killed.
const killTime = 5 * time.Second

// Exec runs a command and waits for its end. When ctx or this process ends, the command is killed.
// Unless ctx has ended, an error means that the command's outcome is unknown.
func (s *Store) Exec(ctx context.Context, id turnstone.SandboxID,
	cmd Command) (wire.ProcessExit, error) {
	i, err := s.Get(id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	c, err := s.client(ctx, id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	defer c.Close()
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
		// The connection is lost, and the process with it. The sandbox still has its output until
		// then and its exit status. A fork also ends connections; the process then continues.
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
				"killed because the connection to the sandbox was lost").
				WithHint("use -d for a command that outlives its connection")
		}
		return exit, s.endReason(id, err)
	}
	if err == nil {
		_ = c.ProcessRelease(context.WithoutCancel(ctx),
			&wire.ProcessReleaseParams{ProcessID: p.ProcessID})
	}
	return exit, err
}

// kill ends a process that should have ended with its lost connection.
func (s *Store) kill(ctx context.Context, id turnstone.SandboxID, process string) {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	c, err := s.client(ctx, id)
	if err != nil {
		return // the process has ended with its sandbox
	}
	defer c.Close()
	_ = c.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: "KILL"})
}

// StartDetached starts a command without waiting for it and returns its name. The command has no
// standard input. Its output is kept for Attach, up to a bound.
func (s *Store) StartDetached(ctx context.Context, id turnstone.SandboxID,
	cmd Command) (string, error) {
	i, err := s.Get(id)
	if err != nil {
		return "", err
	}
	c, err := s.client(ctx, id)
	if err != nil {
		return "", err
	}
	defer c.Close()
	p := cmd.params(i)
	p.Detach = true
	res, err := c.ProcessStart(ctx, &p)
	if err != nil {
		return "", s.endReason(id, err)
	}
	return res.ProcessID, nil
}

// params returns the command for the agent of i.
func (c *Command) params(i Info) wire.ProcessStartParams {
	return wire.ProcessStartParams{ProcessID: "p" + strings.ToLower(rand.Text()[:12]),
		Argv: c.Argv, Env: c.Env,
		Cwd: cmp.Or(c.Cwd, i.Workdir), User: cmp.Or(c.User, i.User), Terminal: c.Terminal}
}

// control passes on signals and sizes until done. Signals and sizes before the start or after the
// end have no effect.
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
			_ = to.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: process, Signal: name})
		}
	}
}

// Processes returns a sandbox's running processes and the most recent processes that have ended.
func (s *Store) Processes(ctx context.Context,
	id turnstone.SandboxID) ([]wire.ProcessProcessInfo, error) {
	c, err := s.client(ctx, id)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	res, err := c.ProcessList(ctx)
	if err != nil {
		return nil, s.endReason(id, err)
	}
	return res.Processes, nil
}

// Attach copies the kept output of a process and the following output until the process ends. After
// a lost connection Attach continues at the same offset. lost is called with the number of bytes of
// an output that are no longer kept. When ctx ends, the process continues.
func (s *Store) Attach(ctx context.Context, id turnstone.SandboxID, process string, stdout,
	stderr io.Writer, lost func(stream wire.ProcessStream, bytes int64)) (wire.ProcessExit, error) {
	return s.follow(ctx, id, process, [2]*counter{{w: stdout}, {w: stderr}}, lost)
}

const (
	// maxRetries bounds the consecutive reconnections without any received byte.
	maxRetries = 5
	retryDelay = 200 * time.Millisecond
)

// follow is Attach from the offsets that outs have reached.
func (s *Store) follow(ctx context.Context, id turnstone.SandboxID, process string,
	outs [2]*counter, lost func(wire.ProcessStream, int64)) (wire.ProcessExit, error) {
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
			return exit, s.endReason(id, err)
		}
		select {
		case <-ctx.Done():
			return exit, canceled(ctx, "sandbox.attach")
		case <-time.After(retryDelay):
		}
	}
}

func (s *Store) followOnce(ctx context.Context, id turnstone.SandboxID, process string,
	outs [2]*counter, lost func(wire.ProcessStream, int64)) (wire.ProcessExit, error) {
	c, err := s.client(ctx, id)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	var in [2]*wire.Receiver
	p := wire.ProcessAttachParams{ProcessID: process, StdoutOffset: outs[0].n,
		StderrOffset: outs[1].n,
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
				lost([]wire.ProcessStream{wire.ProcessStreamStdout, wire.ProcessStreamStderr}[n],
					gap)
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
		_ = c.Close() // ends the other copy
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

// client opens a connection for a single task.
func (s *Store) client(ctx context.Context, id turnstone.SandboxID) (*wire.Client, error) {
	conn, err := s.Dial(ctx, id)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(conn), nil
}

// closeAfter closes c if ctx has ended and the sandbox does not react soon after.
func closeAfter(ctx context.Context, c *wire.Client) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		select {
		case <-c.Done():
		case <-time.After(killTime):
			_ = c.Close()
		}
	})
}

// endReasonTime bounds the time in which a holder records why its machine ended.
const endReasonTime = 2 * time.Second

// endReason prefers the recorded cause of a sandbox's end over the resulting connection error.
func (s *Store) endReason(id turnstone.SandboxID, err error) error {
	if turnstone.KindOf(err) != turnstone.KindDead {
		return err
	}
	const pause = 20 * time.Millisecond
	for until := time.Now().Add(endReasonTime); time.Now().Before(until); time.Sleep(pause) {
		i, getErr := s.Get(id)
		if turnstone.KindOf(getErr) == turnstone.KindNotFound {
			return turnstone.Errorf("sandbox.use", turnstone.KindDead, "sandbox "+string(id),
				"it was removed")
		}
		if getErr == nil && i.State.Final() {
			return turnstone.Errorf("sandbox.use", turnstone.KindDead, "sandbox "+i.Title(),
				"it is %s: %s", i.State, i.Reason).WithHint(
				"create a new sandbox with turn sandbox create")
		}
	}
	return err
}

// A counter counts the bytes that pass through, and keeps the error that ends the copy.
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
