package access

import (
	"context"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Attach copies the kept output of a process and the following output until the process ends. After
// a lost connection Attach continues at the same offset. lost is called with the number of bytes of
// an output that are no longer kept. When ctx ends, the process continues.
func (a *Access) Attach(ctx context.Context, id turnstone.SandboxID, process string, stdout,
	stderr io.Writer, lost func(stream wire.ProcessStream, bytes int64)) (wire.ProcessExit, error) {
	f := &follower{access: a, id: id, process: process, outs: [2]*counter{{w: stdout}, {w: stderr}},
		lost: lost}
	return f.run(ctx)
}

const (
	// maxRetries bounds the consecutive reconnections without any received byte.
	maxRetries = 5
	retryDelay = 200 * time.Millisecond
	// longestDelay is the longest time between two connections to a sandbox that is far away.
	longestDelay = 5 * time.Second
)

// A follower takes the output of a process from the offsets that outs have reached, over as many
// connections as it takes.
type follower struct {
	access  *Access
	id      turnstone.SandboxID
	process string
	outs    [2]*counter
	lost    func(wire.ProcessStream, int64) // may be nil

	// Of a command that waits for its client; otherwise nil.
	cmd   *Command
	start *wire.ProcessStartParams
	in    *input // its standard input; may be nil
	tried bool   // to start it
	begun bool   // the sandbox knows it

	connected bool          // once
	held      time.Duration // of the last connection
	over      bool          // the process has ended
}

// run follows the process to its end.
func (f *follower) run(ctx context.Context) (wire.ProcessExit, error) {
	delay, since := retryDelay, time.Now()
	for failures := 0; ; failures++ {
		before := f.outs[0].n + f.outs[1].n
		f.held = 0
		exit, err := f.once(ctx)
		if err == nil || ctx.Err() != nil || !f.again(err) {
			f.over = err == nil
			return exit, err
		}
		if f.outs[0].n+f.outs[1].n > before {
			failures, delay, since = 0, retryDelay, time.Now()
		} else {
			since = since.Add(f.held) // a command may be silent for longer than it lingers
		}
		enough := failures == maxRetries
		if f.access.Linger > 0 {
			enough = time.Since(since)+delay > f.access.Linger
		}
		if enough || f.access.gone(ctx, f.id) {
			return exit, f.access.EndReason(ctx, f.id, err)
		}
		select {
		case <-ctx.Done():
			return exit, canceled(ctx, "sandbox.attach")
		case <-time.After(delay):
		}
		if f.access.Linger > 0 {
			delay = min(2*delay, longestDelay)
		}
	}
}

// again reports whether another connection may help.
func (f *follower) again(err error) bool {
	switch turnstone.KindOf(err) {
	case turnstone.KindDead:
		return f.connected || f.access.Linger == 0
	case turnstone.KindUnavailable, turnstone.KindTimeout:
		return f.connected && f.access.Linger > 0
	}
	return false
}

// once follows the process over one connection.
func (f *follower) once(ctx context.Context) (wire.ProcessExit, error) {
	c, left, err := f.connect(ctx)
	if err != nil {
		return wire.ProcessExit{}, err
	}
	f.connected = true
	opened := time.Now()
	defer func() { f.held = time.Since(opened) }()
	defer left()
	if f.cmd != nil {
		done := make(chan struct{})
		defer close(done)
		go f.cmd.control(c, f.process, done)
		if !f.tried {
			return f.first(ctx, c)
		}
	}
	exit, err := f.attach(ctx, c)
	if f.cmd != nil && !f.begun && turnstone.KindOf(err) == turnstone.KindNotFound {
		return f.first(ctx, c) // its start did not arrive
	}
	if err == nil && f.cmd != nil {
		f.access.release(ctx, c, f.process)
	}
	return exit, err
}

// connect opens a connection: after the first one within a bound, so that another is tried. A command
// begins on the connection that is kept.
func (f *follower) connect(ctx context.Context) (c *wire.Client, done func(), err error) {
	switch {
	case !f.connected && f.start != nil:
		return f.access.use(ctx, f.id)
	case !f.connected || f.access.Linger == 0:
		c, err = f.access.Client(ctx, f.id)
		return c, closing(c), err
	}
	bounded, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	c, err = f.access.Client(bounded, f.id)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = turnstone.NewError("sandbox.attach", turnstone.KindTimeout, "sandbox "+string(f.id), err)
	}
	return c, closing(c), err
}

// first starts the command.
func (f *follower) first(ctx context.Context, c *wire.Client) (wire.ProcessExit, error) {
	defer closeAfter(ctx, c)()
	f.tried = true
	io := wire.Stdio{Out: f.outs[0], Err: f.outs[1]}
	if f.in != nil {
		r, err := f.in.from(0)
		if err != nil {
			return wire.ProcessExit{}, err
		}
		io.In = r
	}
	ended, err := c.Start(ctx, *f.start, io)
	if err == nil {
		f.access.release(ctx, c, f.process)
	}
	return ended.Exit, err
}

func (f *follower) attach(ctx context.Context, c *wire.Client) (wire.ProcessExit, error) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	var in [2]*wire.Receiver
	var err error
	p := wire.ProcessAttachParams{ProcessID: f.process, StdoutOffset: f.outs[0].n,
		StderrOffset: f.outs[1].n, StdoutStream: c.NewStream(), StderrStream: c.NewStream(),
		TakeOver: f.cmd != nil}
	for n, stream := range []wire.StreamID{p.StdoutStream, p.StderrStream} {
		if in[n], err = c.Receiver(stream); err != nil {
			return wire.ProcessExit{}, err
		}
	}
	var feed *wire.Sender
	if f.in != nil {
		p.StdinStream = c.NewStream()
		if feed, err = c.Sender(p.StdinStream); err != nil {
			return wire.ProcessExit{}, err
		}
		defer feed.Abort(nil)
	}
	res, err := c.ProcessAttach(ctx, &p)
	if err != nil {
		return wire.ProcessExit{}, orCanceled(ctx, err)
	}
	f.begun = true
	f.gaps(res)
	if f.in != nil {
		r, err := f.in.from(res.StdinOffset)
		if err != nil {
			return wire.ProcessExit{}, err
		}
		go func() { // ends with the input, the connection, or the next connection
			if _, err := io.Copy(feed, r); err == nil {
				_ = feed.Close()
			}
		}()
	}
	if err := f.copy(c, in); err != nil {
		return wire.ProcessExit{}, orCanceled(ctx, err)
	}
	end, err := c.ProcessWait(ctx, &wire.ProcessWaitParams{ProcessID: f.process})
	if err != nil {
		return wire.ProcessExit{}, orCanceled(ctx, err)
	}
	return end.Exit, nil
}

// gaps reports output that is no longer kept.
func (f *follower) gaps(res *wire.ProcessAttachResult) {
	names := [2]wire.ProcessStream{wire.ProcessStreamStdout, wire.ProcessStreamStderr}
	for n, from := range []int64{res.StdoutOffset, res.StderrOffset} {
		if gap := from - f.outs[n].n; gap > 0 {
			f.outs[n].n = from
			if f.lost != nil {
				f.lost(names[n], gap)
			}
		}
	}
}

// copy copies both outputs to their ends.
func (f *follower) copy(c *wire.Client, in [2]*wire.Receiver) error {
	copied := make(chan error, 2)
	for n := range in {
		go func() {
			_, err := io.Copy(f.outs[n], in[n])
			copied <- err
		}()
	}
	err := <-copied
	if err != nil {
		_ = c.Close() // ends the other copy
	}
	if second := <-copied; err == nil {
		err = second
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
