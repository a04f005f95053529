package agent

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// maxLinger bounds how long a process waits for its client.
const maxLinger = 24 * time.Hour

// inTransit is the number of bytes of an output that were sent and may not have arrived: the wire's
// window for a stream, and a chunk.
const inTransit = 1<<20 + wire.MaxChunk

// farewell is how long a connection whose place is taken may accept nothing before it is closed.
const farewell = time.Second

// lingering is a process that waits for its client after a lost connection.
type lingering struct {
	a     *Agent
	p     *process.Process
	grace time.Duration

	taking sync.Mutex // held by the connection that takes the place of another

	mu    sync.Mutex
	owner *attachment // nil: its client is away
	feed  *feeding    // of the present owner; nil: there is none
	timer *time.Timer // nil: its client is there
	eof   bool        // standard input has ended
}

// lingers are the lingering processes that have not ended.
type lingers struct {
	mu  sync.Mutex
	all map[*process.Process]*lingering
}

func (l *lingers) get(p *process.Process) *lingering {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[p]
}

// add makes a process wait for its client until the process ends.
func (l *lingers) add(a *Agent, p *process.Process, grace time.Duration) {
	for _, out := range p.Out[1:] {
		out.Hold(inTransit)
	}
	l.mu.Lock()
	if l.all == nil {
		l.all = make(map[*process.Process]*lingering)
	}
	l.all[p] = &lingering{a: a, p: p, grace: grace}
	l.mu.Unlock()
	go func() {
		<-p.Exited()
		l.mu.Lock()
		this := l.all[p]
		delete(l.all, p)
		l.mu.Unlock()
		this.stop()
	}()
}

// stop ends the waiting.
func (l *lingering) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// arrived records the connection that the process waits for.
func (l *lingering) arrived(at *attachment) {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owner = at
}

// left is called at the end of an attachment. If it was the owner's, the process waits for another.
// After a snapshot nobody may come: the process of a clone then continues alone.
func (l *lingering) left(at *attachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner != at {
		return
	}
	l.owner = nil
	cloned := l.a.suspended.Load()
	l.timer = time.AfterFunc(l.grace, func() {
		l.mu.Lock()
		away := l.owner == nil
		l.mu.Unlock()
		switch {
		case !away:
		case cloned:
			for _, out := range l.p.Out[1:] {
				out.Release()
			}
		default:
			_ = l.p.Signal(syscall.SIGKILL) // if it has not ended
		}
	})
}

// A feeding copies a stream to a process's standard input.
type feeding struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// feedFrom starts to copy a stream of c to the process.
func (l *lingering) feedFrom(c *wire.Conn, r *wire.Receiver) {
	ctx, cancel := context.WithCancel(c.Context())
	f := &feeding{cancel: cancel, done: make(chan struct{})}
	l.mu.Lock()
	l.feed = f
	l.mu.Unlock()
	c.Go(func() {
		defer close(f.done)
		defer cancel()
		defer context.AfterFunc(ctx, func() { _ = r.Close() })()
		feed(ctx, c, l.p, r, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			first := !l.eof
			l.eof = true
			return first
		})
	})
}

// vacate ends the owner's attachment and its standard input.
func (l *lingering) vacate(ctx context.Context) error {
	l.mu.Lock()
	at, f := l.owner, l.feed
	l.feed = nil
	l.mu.Unlock()
	if at != nil {
		left := make(chan struct{})
		go func() {
			defer close(left)
			at.cl.detach(ctx, l.p)
		}()
		select {
		case <-left:
		case <-time.After(farewell): // its client has vanished, and accepts nothing
			_ = at.cl.c.Close()
			<-left
		}
	}
	if f != nil {
		f.cancel()
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return turnstone.NewError(wire.MethodProcessAttach, turnstone.KindCanceled, l.p.ID,
			context.Cause(ctx))
	}
	return nil
}

// takeOver attaches a connection in the place of the one before.
func (s *processes) takeOver(ctx context.Context, c *wire.Conn, proc *process.Process,
	p *wire.ProcessAttachParams, want [2]wanted) (*attachment, error) {
	l := s.a.lingers.get(proc)
	if l == nil { // it has ended, or it waits for nobody
		closeStdin(c, p.StdinStream)
		return s.a.client(c).attachAgain(ctx, proc, want, process.Owner)
	}
	l.taking.Lock()
	defer l.taking.Unlock()
	if err := l.vacate(ctx); err != nil {
		return nil, err
	}
	at, err := s.a.client(c).attachAgain(ctx, proc, want, process.Owner)
	if err != nil {
		return nil, err
	}
	l.arrived(at)
	return at, nil
}

// feedFirst starts the standard input of a process that c has started.
func (s *processes) feedFirst(c *wire.Conn, proc *process.Process, stream wire.StreamID) {
	r, err := c.Receiver(stream)
	if err != nil {
		return
	}
	if l := s.a.lingers.get(proc); l != nil {
		l.feedFrom(c, r)
		return
	}
	c.Go(func() { feed(c.Context(), c, proc, r, func() bool { return true }) })
}

// feedOn continues the standard input of a process whose place was taken. The input's offset was
// read before.
func (s *processes) feedOn(c *wire.Conn, proc *process.Process, stream wire.StreamID) {
	l := s.a.lingers.get(proc)
	if l == nil || stream == 0 {
		closeStdin(c, stream)
		return
	}
	if r, err := c.Receiver(stream); err == nil {
		l.feedFrom(c, r)
	}
}

// closeStdin says that nobody reads a stream.
func closeStdin(c *wire.Conn, stream wire.StreamID) {
	if stream == 0 {
		return
	}
	if r, err := c.Receiver(stream); err == nil {
		_ = r.Close()
	}
}

// feed copies a stream to a process's standard input, until ctx ends. The stream's end closes
// standard input if last says so; if the stream is reset, or its connection is lost, standard input
// stays open.
func feed(ctx context.Context, c *wire.Conn, p *process.Process, r *wire.Receiver,
	last func() bool) {
	fed := make(chan struct{})
	defer close(fed)
	c.Go(func() {
		select {
		case <-p.Exited(): // tell the client that there is no reader
		case <-fed:
		}
		_ = r.Close()
	})
	buf := make([]byte, wire.MaxChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 && p.Write(ctx, buf[:n]) != nil {
			return
		}
		// the error of a lost connection may have io.EOF in its chain
		if err == io.EOF && last() { //nolint:errorlint
			_ = p.CloseStdin(ctx)
		}
		if err != nil {
			return
		}
	}
}

// lingerOf returns how long a process waits for its client.
func lingerOf(p *wire.ProcessStartParams) (time.Duration, error) {
	grace := time.Duration(p.Linger) * time.Millisecond
	switch {
	case p.Linger < 0 || p.Linger > maxLinger.Milliseconds():
		return 0, Invalid(wire.MethodProcessStart, "linger", "it is not from 0 to 86,400,000")
	case grace > 0 && (p.Detach || p.KillOnDisconnect):
		return 0, Invalid(wire.MethodProcessStart, "linger",
			"it cannot be used with detach or killOnDisconnect")
	}
	return grace, nil
}
