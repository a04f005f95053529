package agent

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/record"
	"turnstone.dev/turnstone/wire"
)

// maxAttached bounds the processes from which one connection takes output at a time.
const maxAttached = 256

// A client is the agent's state for one connection.
type client struct {
	a *Agent
	c *wire.Conn

	mu       sync.Mutex
	closed   bool
	attached map[*process.Process]*attachment
	changing map[*process.Process]struct{} // an attachment is in progress
	kills    []*process.Process            // end with the connection
	watches  files.Watches
}

func newClient(a *Agent, c *wire.Conn) *client {
	return &client{a: a, c: c, attached: make(map[*process.Process]*attachment),
		changing: make(map[*process.Process]struct{})}
}

// close ends the processes that end with the connection.
func (cl *client) close() {
	cl.mu.Lock()
	cl.closed = true
	kills := cl.kills
	cl.kills = nil
	cl.mu.Unlock()
	if cl.a.suspended.Load() {
		kills = nil // the host ended the connection for a snapshot, not the client
	}
	for _, p := range kills {
		_ = p.Signal(syscall.SIGKILL) // if it has not ended
	}
	cl.watches.Close()
}

// killWith makes a process end with the connection.
func (cl *client) killWith(p *process.Process) {
	cl.mu.Lock()
	closed := cl.closed
	left := cl.kills[:0]
	for _, q := range cl.kills {
		if !q.Ended() {
			left = append(left, q)
		}
	}
	cl.kills = append(left, p)
	cl.mu.Unlock()
	if closed {
		_ = p.Signal(syscall.SIGKILL)
	}
}

// An attachment sends a process's output, and then its end, to a connection.
type attachment struct {
	cl       *client
	p        *process.Process
	step     *step // nil: a plain process
	rank     process.Rank
	recorded *record.Command // the connection records the command; nil: it does not
	ctx      context.Context
	cancel   context.CancelFunc
	outs     [2]*delivery
	left     sync.Once
	ended    chan struct{} // closed when nothing more is sent
}

// wanted is a client's request for one output.
type wanted struct {
	from   int64
	stream wire.StreamID // 0: events
	window int64
}

// attachAgain attaches the connection to a process, and replaces the connection's previous
// attachment to it.
func (cl *client) attachAgain(ctx context.Context, p *process.Process,
	want [2]wanted, rank process.Rank) (*attachment, error) {
	const op = wire.MethodProcessAttach
	cl.mu.Lock()
	_, busy := cl.changing[p]
	if !busy {
		cl.changing[p] = struct{}{}
	}
	cl.mu.Unlock()
	if busy {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, p.ID,
			"this connection is attaching to it already").
			WithHint("wait for the answer to the command before")
	}
	defer func() {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		delete(cl.changing, p)
	}()
	var st *step
	if old := cl.detach(ctx, p); old != nil {
		st, rank = old.step, max(rank, old.rank)
	}
	rec := cl.a.records.Of(cl.c, p)
	if rec != nil {
		rank = process.Recorder
	}
	if ctx.Err() != nil { // the previous attachment may still be sending
		return nil, turnstone.NewError(op, turnstone.KindCanceled, p.ID, context.Cause(ctx))
	}
	at, err := cl.attach(p, st, rank, want)
	if err == nil {
		at.recorded = rec
	}
	return at, err
}

// attach attaches the connection to a process that it is not attached to. Nothing is sent before
// begin.
func (cl *client) attach(p *process.Process, st *step, rank process.Rank,
	want [2]wanted) (*attachment, error) {
	const op = wire.MethodProcessAttach
	at := &attachment{cl: cl, p: p, step: st, rank: rank, ended: make(chan struct{})}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	switch {
	case cl.closed:
		return nil, turnstone.Errorf(op, turnstone.KindDead, "connection", "it has ended")
	case len(cl.attached) >= maxAttached && rank != process.Recorder:
		return nil, turnstone.NewError(op, turnstone.KindExhausted,
			"processes that this connection is attached to",
			nil).WithHint("detach from some with Process.detach, or open another connection")
	}
	if err := p.Attach(); err != nil {
		return nil, err
	}
	at.ctx, at.cancel = context.WithCancel(cl.c.Context())
	for i, w := range want {
		d, err := newDelivery(at, i+1, w)
		if err != nil {
			at.drop()
			return nil, err
		}
		at.outs[i] = d
	}
	cl.attached[p] = at
	return at, nil
}

// drop releases an attachment that was never begun.
func (at *attachment) drop() {
	at.cancel()
	for _, d := range at.outs {
		if d != nil {
			d.close(errors.New("the command failed"))
		}
	}
	at.leave()
}

// leave reports that the process's output is no longer needed. It is called before the client
// learns of the end, so that the client may release the process then.
func (at *attachment) leave() { at.left.Do(at.p.Detach) }

// begin starts sending.
func (at *attachment) begin() {
	at.cl.c.Go(func() {
		defer at.end()
		if at.recorded != nil && at.recorded.Begun(at.ctx, at.cl.c) != nil {
			at.cancel()
		}
		var wg sync.WaitGroup
		for _, d := range at.outs {
			wg.Go(d.run)
		}
		if at.step != nil {
			wg.Go(func() { at.step.live(at.ctx, at.cl.c) })
		}
		wg.Wait()
		select {
		case <-at.p.Done():
		case <-at.ctx.Done():
			return
		}
		at.leave()
		if at.recorded != nil {
			at.recorded.Ended(at.ctx, at.cl.c, at.p, *wireExit(at.p.Exit()))
			return
		}
		if at.step != nil {
			at.step.tell(at.ctx, at.cl.c)
			return
		}
		_, stdout := at.p.Out[1].Range()
		_, stderr := at.p.Out[2].Range()
		_ = at.cl.c.EmitProcessExited(at.ctx,
			&wire.ProcessExitedEvent{ProcessID: at.p.ID, Exit: *wireExit(at.p.Exit()),
				StdoutEnd: stdout, StderrEnd: stderr})
	})
}

func (at *attachment) end() {
	at.cancel()
	at.leave()
	at.cl.mu.Lock()
	if at.cl.attached[at.p] == at {
		delete(at.cl.attached, at.p)
	}
	at.cl.mu.Unlock()
	if l := at.cl.a.lingers.get(at.p); l != nil {
		l.left(at)
	}
	close(at.ended)
}

// detach ends the connection's attachment to a process. It returns the attachment when nothing more
// is sent for it, or when ctx has ended; nil if there was none.
func (cl *client) detach(ctx context.Context, p *process.Process) *attachment {
	cl.mu.Lock()
	at := cl.attached[p]
	cl.mu.Unlock()
	if at == nil {
		return nil
	}
	at.cancel()
	for _, d := range at.outs {
		d.abort()
	}
	select {
	case <-at.ended:
	case <-ctx.Done():
	}
	return at
}

// A delivery sends one output to a connection: as a stream, or as events.
type delivery struct {
	at     *attachment
	name   wire.ProcessStream
	reader *process.Reader // nil: there is no such output
	sender *wire.Sender    // nil: events
	from   int64           // the client's request
	offset int64           // the actual start
	window int64

	mu    sync.Mutex
	sent  int64
	acked int64
	wake  chan struct{} // holds one signal: acked has changed
}

func newDelivery(at *attachment, fd int, w wanted) (*delivery, error) {
	d := &delivery{at: at, name: wire.ProcessStreamStdout, from: w.from, window: w.window,
		wake: make(chan struct{}, 1)}
	if fd == 2 {
		d.name = wire.ProcessStreamStderr
	}
	if l := at.p.Out[fd]; l != nil {
		if _, end := l.Range(); w.from < 0 || w.from > end {
			return nil, Invalid(wire.MethodProcessAttach, string(d.name),
				"the offset is beyond what there is so far")
		}
		d.reader, d.offset = l.Attach(at.ctx, w.from, at.rank)
		if d.reader == nil {
			return nil, turnstone.Errorf(wire.MethodProcessAttach, turnstone.KindExhausted, at.p.ID,
				"too many connections are attached to it").WithHint("detach some")
		}
	}
	d.sent, d.acked = d.offset, d.offset
	if w.stream != 0 {
		var err error
		if d.sender, err = at.cl.c.Sender(w.stream); err != nil {
			d.close(err)
			return nil, err
		}
	}
	return d, nil
}

// close releases a delivery that was not run.
func (d *delivery) close(why error) {
	if d.reader != nil {
		d.reader.Close()
	}
	if d.sender != nil {
		d.sender.Abort(why)
	}
}

// abort makes a run that waits for its reader return.
func (d *delivery) abort() {
	if d.sender != nil {
		d.sender.Abort(errors.New("detached"))
	}
}

// run sends until the output's end. It reports as lost a part that was dropped before it was sent;
// a stream, which cannot have gaps, is then reset.
func (d *delivery) run() {
	ctx, c := d.at.ctx, d.at.cl.c
	if d.reader != nil {
		defer d.reader.Close()
	}
	if d.offset > d.from {
		d.lost(d.from, d.offset)
	}
	next := d.offset
	for d.reader != nil {
		limit := d.room(ctx)
		if limit == 0 {
			break
		}
		data, offset, ok := d.reader.Next(limit)
		if !ok {
			break
		}
		if offset > next {
			d.lost(next, offset)
			if d.sender != nil {
				d.sender.Abort(errors.New("a part of the output was lost"))
				return
			}
		}
		next = offset + int64(len(data))
		if len(data) > 0 && d.send(ctx, c, data, offset) != nil {
			break
		}
	}
	if d.sender == nil {
		return
	}
	if ctx.Err() != nil {
		d.abort()
		return
	}
	_ = d.sender.Close()
}

func (d *delivery) lost(from, to int64) {
	_ = d.at.cl.c.EmitProcessLost(d.at.ctx,
		&wire.ProcessLostEvent{ProcessID: d.at.p.ID, Stream: d.name, From: from, To: to})
}

func (d *delivery) send(ctx context.Context, c *wire.Conn, data []byte, offset int64) error {
	if d.sender != nil {
		_, err := d.sender.Write(data)
		return err
	}
	d.mu.Lock()
	d.sent = offset + int64(len(data))
	d.mu.Unlock()
	return c.EmitProcessOutput(ctx,
		&wire.ProcessOutputEvent{ProcessID: d.at.p.ID, Stream: d.name, Offset: offset, Data: data})
}

// room waits until the window allows another event, and returns that event's maximum size; 0 when
// ctx has ended.
func (d *delivery) room(ctx context.Context) int {
	if d.window <= 0 || d.sender != nil {
		return wire.SendChunk
	}
	for {
		d.mu.Lock()
		left := d.window - (d.sent - d.acked)
		d.mu.Unlock()
		if left > 0 {
			return int(min(left, wire.SendChunk))
		}
		select {
		case <-d.wake:
		case <-ctx.Done():
			return 0
		}
	}
}

// acknowledge records the offset up to which the client has processed events.
func (d *delivery) acknowledge(offset int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if offset < 0 || offset > d.sent {
		return Invalid(wire.MethodProcessAcknowledge, string(d.name),
			"the offset is beyond what was sent")
	}
	if offset > d.acked {
		d.acked = offset
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
	return nil
}
