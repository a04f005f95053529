package client

import (
	"context"
	"errors"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A Process is a running command whose outputs are read while it runs. Reading and writing may happen
// at the same time as the other methods.
type Process struct {
	// Stdin is the command's input; nil: an option gave it one. Close it to end the input.
	Stdin io.WriteCloser
	// Stdout and Stderr have to be read, or the command stops when it writes; nil: an option takes them.
	// With a terminal, Stderr stays empty.
	Stdout, Stderr io.Reader

	signals chan string
	sizes   chan wire.ProcessTerminal
	cancel  context.CancelFunc
	done    chan struct{}
	result  *Result // after done
	err     error
}

// Start starts a program, which is killed when ctx ends. Call Wait at its end.
func (s *Sandbox) Start(ctx context.Context, argv []string, options ...ExecOption) (*Process, error) {
	e, err := newExecution(argv, options)
	if err != nil {
		return nil, err
	}
	p := &Process{signals: make(chan string), sizes: make(chan wire.ProcessTerminal),
		done: make(chan struct{})}
	ctx, p.cancel = context.WithCancel(ctx)
	e.cmd.Signals, e.cmd.Resized = p.signals, p.sizes
	var ends []func(error) // of the pipes, when the command has ended
	if e.cmd.Stdin == nil {
		r, w := io.Pipe()
		e.cmd.Stdin, p.Stdin = r, w
		ends = append(ends, func(error) { _ = r.CloseWithError(io.ErrClosedPipe) })
	}
	for _, out := range []struct {
		to   *io.Writer
		from *io.Reader
	}{{&e.cmd.Stdout, &p.Stdout}, {&e.cmd.Stderr, &p.Stderr}} {
		if *out.to == nil {
			r, w := io.Pipe()
			*out.to, *out.from = w, r
			ends = append(ends, func(err error) { _ = w.CloseWithError(err) })
			context.AfterFunc(ctx, func() { _ = r.CloseWithError(context.Cause(ctx)) })
		}
	}
	go func() {
		defer close(p.done)
		p.result, p.err = s.run(ctx, e)
		for _, end := range ends {
			end(p.err)
		}
	}()
	return p, nil
}

// Wait waits for the command's end. Its outputs have to be read before, or at the same time.
func (p *Process) Wait() (*Result, error) {
	<-p.done
	p.cancel()
	return p.result, p.err
}

// Signal sends a signal to the command and its processes, such as "INT".
func (p *Process) Signal(ctx context.Context, name string) error {
	select {
	case p.signals <- name:
		return nil
	case <-p.done:
		return turnstone.Errorf("process.signal", turnstone.KindNotFound, "the command", "has ended")
	case <-ctx.Done():
		return turnstone.NewError("process.signal", turnstone.KindCanceled, "the command", context.Cause(ctx))
	}
}

// Resize changes the size of the command's terminal.
func (p *Process) Resize(ctx context.Context, columns, rows int) error {
	select {
	case p.sizes <- wire.ProcessTerminal{Columns: int64(columns), Rows: int64(rows)}:
		return nil
	case <-p.done:
		return nil
	case <-ctx.Done():
		return turnstone.NewError("process.resize", turnstone.KindCanceled, "the command", context.Cause(ctx))
	}
}

// Kill kills the command, and waits for its end.
func (p *Process) Kill() error {
	p.cancel()
	<-p.done
	if kind := turnstone.KindOf(p.err); kind == turnstone.KindCanceled || errors.Is(p.err, context.Canceled) {
		return nil
	}
	return p.err
}

// Background starts a program that continues without this client, and returns its name. It has no
// input; its output is kept for Attach, up to a bound.
func (s *Sandbox) Background(ctx context.Context, argv []string, options ...ExecOption) (string, error) {
	e, err := newExecution(argv, options)
	if err != nil {
		return "", err
	}
	return s.access.StartDetached(ctx, s.id, e.cmd)
}

// Attach copies the output of a program of Background until the program ends. Of the options, Stdout,
// Stderr and Timeout count. The end of ctx does not end the program.
func (s *Sandbox) Attach(ctx context.Context, process string, options ...ExecOption) (*Result, error) {
	e, err := newExecution([]string{process}, options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	out, errs := e.keep()
	exit, err := s.access.Attach(ctx, s.id, process, e.cmd.Stdout, e.cmd.Stderr,
		func(wire.ProcessStream, int64) { out.cut = true })
	return resultOf(exit, out, errs), err
}

// Processes returns the programs that run, and the newest that have ended.
func (s *Sandbox) Processes(ctx context.Context) ([]wire.ProcessProcessInfo, error) {
	return s.access.Processes(ctx, s.id)
}
