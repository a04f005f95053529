package wire

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"turnstone.dev/turnstone"
)

// A Client drives a sandbox over a connection: its methods send commands together with their
// streams and events. They are safe for concurrent use. If the connection ends, a method returns an
// error of kind KindDead.
type Client struct {
	*Conn

	mu    sync.Mutex
	runs  map[string]*clientRun
	known map[string]bool // other processes that may still send events
	past  []string        // runs in known, the oldest first
}

// maxPast is the number of ended runs that may still send events.
const maxPast = 1024

// clientRun is a process or step whose end the client waits for.
type clientRun struct {
	ended chan any // *ProcessExitedEvent or *ShellFinishedEvent; has room for one

	mu      sync.Mutex
	records func([]ShellRecord) // nil for a process
	over    bool                // records are no longer wanted
	told    bool                // the run's end has arrived
}

// NewClient starts the protocol over stream. The client then owns stream.
func NewClient(stream io.ReadWriteCloser) *Client {
	c := &Client{runs: make(map[string]*clientRun), known: make(map[string]bool)}
	c.Conn = newConn(stream, Options{OnEvent: c.event})
	c.wg.Go(c.readLoop)
	return c
}

// event runs in the reading goroutine.
func (c *Client) event(e Event) {
	if e.Method != EventProcessExited && e.Method != EventShellFinished &&
		e.Method != EventShellCommands {
		return
	}
	var of struct {
		ProcessID string `json:"processId"`
	}
	var v any
	err := json.Unmarshal(e.Params, &of)
	if err == nil {
		v, err = DecodeEvent(e)
	}
	if err != nil {
		c.end(protocolError("a malformed event %s: %s", e.Method, clip(err.Error(), 200)))
		return
	}
	c.mu.Lock()
	r, known := c.runs[of.ProcessID], c.known[of.ProcessID]
	c.mu.Unlock()
	once := true
	switch v := v.(type) {
	case *ProcessExitedEvent:
		if r != nil && r.records == nil {
			once = r.end(v)
		}
	case *ShellFinishedEvent:
		if r != nil {
			once = r.end(v)
		}
	case *ShellCommandsEvent:
		if r != nil {
			r.tell(v.Records)
		}
	}
	switch {
	case r == nil && !known:
		c.end(protocolError("an event %s of a process that this connection did not start",
			e.Method))
	case !once:
		c.end(protocolError("a second event %s of one process", e.Method))
	}
}

// ProcessAttach sends Process.attach, whose events then arrive.
func (c *Client) ProcessAttach(ctx context.Context,
	p *ProcessAttachParams) (*ProcessAttachResult, error) {
	c.mu.Lock()
	c.known[p.ProcessID] = true
	c.mu.Unlock()
	return c.Conn.ProcessAttach(ctx, p)
}

func (r *clientRun) tell(records []ShellRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records != nil && !r.over {
		r.records(records)
	}
}

// close discards the records that arrive from now on.
func (r *clientRun) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// end delivers a run's end once.
func (r *clientRun) end(v any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told {
		return false
	}
	r.told = true
	r.ended <- v
	return true
}

// forget removes an ended run from the waiting runs. Its late events may still arrive.
func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, id)
	c.known[id] = true
	if c.past = append(c.past, id); len(c.past) > maxPast {
		delete(c.known, c.past[0])
		c.past = c.past[1:]
	}
}

// Stdio holds a process's standard streams on the caller's side. Reading In may outlive the call by
// one Read. Output for a nil writer is discarded.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// A StepEnd reports how a step ended.
type StepEnd struct {
	ShellFinishedEvent
	Path string // of the script, as the shell's messages name it
}

// maxInline is the largest script that is sent inside its command.
const maxInline = 1 << 20

// Execute runs a step in the shell session and copies its output while it runs. records may be nil;
// Execute calls it with the commands that have ended, and it must return quickly. When ctx ends,
// Execute kills the step's process tree and still waits for the end, so that the output until then
// is complete; the caller bounds this wait by closing the client. Execute then returns ctx's cause
// together with the result. A writer that fails also ends the step. script may hold any bytes.
func (c *Client) Execute(ctx context.Context, p ShellExecuteParams, script string, io Stdio,
	records func([]ShellRecord)) (*StepEnd, error) {
	if p.ProcessID == "" {
		p.ProcessID = processID()
	}
	p.StdoutStream, p.StderrStream = c.NewStream(), c.NewStream()
	if records == nil {
		records = func([]ShellRecord) {}
	}
	if len(script) <= maxInline && utf8.ValidString(script) {
		p.Script = script
	} else {
		p.ScriptStream = c.NewStream()
		io.In = strings.NewReader(script)
	}
	r := run{c: c, id: p.ProcessID, stdio: io, in: p.ScriptStream, out: p.StdoutStream,
		err: p.StderrStream, records: records}
	end := new(StepEnd)
	ended, err := r.do(ctx, func(ctx context.Context) error {
		res, err := c.ShellExecute(ctx, &p)
		if err == nil {
			end.Path = res.Path
		}
		return err
	})
	if e, ok := ended.(*ShellFinishedEvent); ok {
		end.ShellFinishedEvent = *e
	}
	return end, err
}

// Start runs a process and copies its output while it runs, as Execute does. Standard input is
// /dev/null if io.In is nil.
func (c *Client) Start(ctx context.Context, p ProcessStartParams,
	io Stdio) (*ProcessExitedEvent, error) {
	if p.ProcessID == "" {
		p.ProcessID = processID()
	}
	p.StdoutStream, p.StderrStream = c.NewStream(), c.NewStream()
	if io.In != nil {
		p.StdinStream = c.NewStream()
	}
	r := run{c: c, id: p.ProcessID, stdio: io, in: p.StdinStream, out: p.StdoutStream,
		err: p.StderrStream}
	ended, err := r.do(ctx, func(ctx context.Context) error {
		_, err := c.ProcessStart(ctx, &p)
		return err
	})
	res, _ := ended.(*ProcessExitedEvent)
	if res == nil {
		res = new(ProcessExitedEvent)
	}
	return res, err
}

// processID returns a name that no other connection chooses.
func processID() string { return "p" + strings.ToLower(rand.Text()[:12]) }

// run implements Execute and Start. It sends the command and its streams without waiting for each
// other because a round trip into a sandbox is expensive.
type run struct {
	c            *Client
	id           string
	stdio        Stdio
	in, out, err StreamID
	records      func([]ShellRecord)
}

func (r *run) do(ctx context.Context, start func(context.Context) error) (ended any, err error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx, "process.start")
	}
	c := r.c
	this := &clientRun{records: r.records, ended: make(chan any, 1)}
	c.mu.Lock()
	c.runs[r.id] = this
	c.mu.Unlock()
	defer func() {
		this.close()
		c.forget(r.id)
	}()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var outs sync.WaitGroup
	var opened []*Receiver
	var got [2]int64
	give := func() {
		for _, o := range opened {
			_ = o.Close()
		}
		outs.Wait()
	}
	for i, o := range []struct {
		id StreamID
		w  io.Writer
	}{{r.out, r.stdio.Out}, {r.err, r.stdio.Err}} {
		recv, err := c.Receiver(o.id)
		if err != nil {
			give()
			return nil, err
		}
		opened = append(opened, recv)
		outs.Go(func() { got[i] = drainTo(o.w, recv, cancel) })
	}
	if r.in != 0 {
		s, err := c.Sender(r.in)
		if err != nil {
			give()
			return nil, err
		}
		defer s.Abort(nil)
		go func() { // ends with the input, or when the process has ended
			if _, err := copyBuffer(s, r.stdio.In); err == nil {
				_ = s.Close()
			} else {
				s.Abort(err)
			}
		}()
	}
	if err := start(context.WithoutCancel(ctx)); err != nil {
		give() // the outputs will not end
		return nil, err
	}
	stopKill := context.AfterFunc(ctx, func() {
		_ = c.ProcessSignal(context.WithoutCancel(ctx),
			&ProcessSignalParams{ProcessID: r.id, Signal: "KILL"})
	})
	select {
	case ended = <-this.ended:
	case <-c.Done():
		select {
		case ended = <-this.ended: // the run's end arrived first
		default:
			err = r.lost(ctx)
		}
	}
	outs.Wait()
	if killed := !stopKill(); killed && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = whole(ended, got)
	}
	return ended, err
}

// whole verifies that all output has arrived that the other side counted.
func whole(ended any, got [2]int64) error {
	var want [2]int64
	switch e := ended.(type) {
	case *ProcessExitedEvent:
		want = [2]int64{e.StdoutEnd, e.StderrEnd}
	case *ShellFinishedEvent:
		want = [2]int64{e.StdoutEnd, e.StderrEnd}
	}
	for i, name := range []string{"standard output", "standard error"} {
		if missing := want[i] - got[i]; missing > 0 {
			return turnstone.Errorf("process.wait", turnstone.KindIntegrity, name,
				"%d bytes of it were lost", missing).
				WithHint("use only one client of the sandbox for this process")
		}
	}
	return nil
}

// lost returns the error for a run whose end stays unknown: either the run was canceled and its
// machine was ended, or the machine ended by itself.
func (r *run) lost(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctxError(ctx, "process.wait")
	}
	r.c.Conn.mu.Lock()
	defer r.c.Conn.mu.Unlock()
	return r.c.dead("process.wait")
}

// Put unpacks the tar stream r in the sandbox (FileSystem.unpack). Put may return an error before r
// was read to its end, and reading r may outlive Put by one Read: close the source of r.
func (c *Client) Put(ctx context.Context, dest string, r io.Reader) error {
	return c.Unpack(ctx, FileSystemUnpackParams{Dest: dest}, r)
}

// Unpack is FileSystem.unpack with the data of r, which p's stream carries.
func (c *Client) Unpack(ctx context.Context, p FileSystemUnpackParams, r io.Reader) error {
	return c.Feed(r, func(id StreamID) error {
		p.Stream = id
		return c.FileSystemUnpack(ctx, &p)
	})
}

// Feed runs a command whose stream carries the data of r. An error of r takes precedence over the
// command's error, which is a consequence. Reading r may outlive Feed by one Read.
func (c *Client) Feed(r io.Reader, command func(StreamID) error) error {
	id := c.NewStream()
	s, err := c.Sender(id)
	if err != nil {
		return err
	}
	defer s.Abort(nil)
	sent := make(chan error, 1)
	go func() {
		_, err := copyBuffer(s, r)
		if err != nil {
			sent <- err // sent before release: the answer to the next frames depends on it
			s.Abort(err)
			return
		}
		sent <- s.Close()
	}()
	err = command(id)
	if err == nil {
		return nil
	}
	select {
	case sendErr := <-sent:
		var te *turnstone.Error
		if sendErr != nil && !errors.As(sendErr, &te) && !hungUp(sendErr) {
			return sendErr // r failed; the agent saw only the consequence
		}
	default:
	}
	return err
}

// Get writes path of the sandbox to w as a tar stream (FileSystem.pack). The stream is untrusted:
// its names can lead out of the destination. sandboxes.Store.Download unpacks such a stream safely.
func (c *Client) Get(ctx context.Context, path string, w io.Writer) error {
	return c.Pack(ctx, FileSystemPackParams{Path: path}, w)
}

// Pack is FileSystem.pack, which writes the data of p's stream to w. The stream is untrusted.
func (c *Client) Pack(ctx context.Context, p FileSystemPackParams, w io.Writer) error {
	id := c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	p.Stream = id
	answer := make(chan error, 1)
	go func() {
		err := c.FileSystemPack(ctx, &p)
		if err != nil {
			_ = r.Close()
		}
		answer <- err
	}()
	tail := &tailWriter{w: w}
	_, err = copyBuffer(tail, r)
	if tail.err != nil {
		_ = r.Close()
		<-answer
		return tail.err
	}
	if failed := <-answer; failed != nil {
		return failed
	}
	switch {
	case err != nil:
		return err
	case tail.complete():
		return nil
	}
	return turnstone.Errorf(MethodFileSystemPack, turnstone.KindInternal, p.Path,
		"the archive is truncated").WithHint(
		"try again when nothing changes the file")
}
