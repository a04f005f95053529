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

// A Client drives one sandbox over a connection: its methods are commands with
// the streams and events that belong to them. They are safe for concurrent use.
// A method whose connection ends returns an error of kind Dead.
type Client struct {
	*Conn

	mu    sync.Mutex
	runs  map[string]*clientRun
	known map[string]bool // other processes of which events may come
	past  []string        // those of known that runs were, the oldest first
}

// maxPast is of how many runs that have ended events may still come.
const maxPast = 1024

// clientRun is a process or step whose end is waited for.
type clientRun struct {
	ended chan any // *ProcessExitedEvent or *ShellFinishedEvent; has room for one

	mu      sync.Mutex
	records func([]ShellRecord) // nil for a process
	over    bool                // nobody wants records any more
	told    bool                // its end has come
}

// NewClient starts the protocol over stream, which then belongs to the client.
func NewClient(stream io.ReadWriteCloser) *Client {
	c := &Client{runs: make(map[string]*clientRun), known: make(map[string]bool)}
	c.Conn = newConn(stream, Options{OnEvent: c.event})
	c.wg.Go(c.readLoop)
	return c
}

// event runs in the reading goroutine.
func (c *Client) event(e Event) {
	if e.Method != EventProcessExited && e.Method != EventShellFinished && e.Method != EventShellCommands {
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
		c.end(protocolError("an event %s of a process that this connection did not ask for", e.Method))
	case !once:
		c.end(protocolError("a second event %s of one process", e.Method))
	}
}

// ProcessAttach is Process.attach, whose events then come.
func (c *Client) ProcessAttach(ctx context.Context, p *ProcessAttachParams) (*ProcessAttachResult, error) {
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

// close makes the records that come from now on go nowhere.
func (r *clientRun) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// end takes a run's end, once.
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

// forget takes a run that has ended out of those that are waited for. What is on its
// way may still come.
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

// Stdio are a process's standard streams on the caller's side. Reading In may
// outlive the call by one Read. Nil writers discard.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// A StepEnd is how a step ended.
type StepEnd struct {
	ShellFinishedEvent
	Path string // of the script, as the shell's messages name it
}

// maxInline is the largest script that is sent inside its command.
const maxInline = 1 << 20

// Execute runs one step in the shell session and copies its output while it runs.
// records, which may be nil, is called with the commands that have ended; it must
// be quick. When ctx ends, the step's process tree is killed, and Execute still
// waits for the end, so that the output until then is whole; the caller bounds
// this by closing the client. The error is then ctx's cause, with the result. A
// writer that fails also ends the step. script may hold any bytes.
func (c *Client) Execute(ctx context.Context, p ShellExecuteParams, script string, io Stdio, records func([]ShellRecord)) (*StepEnd, error) {
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
	r := run{c: c, id: p.ProcessID, stdio: io, in: p.ScriptStream, out: p.StdoutStream, err: p.StderrStream, records: records}
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

// Start runs one process and copies its output while it runs, as Execute does.
// Standard input is /dev/null when io.In is nil.
func (c *Client) Start(ctx context.Context, p ProcessStartParams, io Stdio) (*ProcessExitedEvent, error) {
	if p.ProcessID == "" {
		p.ProcessID = processID()
	}
	p.StdoutStream, p.StderrStream = c.NewStream(), c.NewStream()
	if io.In != nil {
		p.StdinStream = c.NewStream()
	}
	r := run{c: c, id: p.ProcessID, stdio: io, in: p.StdinStream, out: p.StdoutStream, err: p.StderrStream}
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

// run is Execute and Start: the command and its streams are sent without waiting
// for each other, because a round trip into a sandbox is expensive.
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
		give() // no end of the outputs will come
		return nil, err
	}
	stopKill := context.AfterFunc(ctx, func() {
		_ = c.ProcessSignal(context.WithoutCancel(ctx), &ProcessSignalParams{ProcessID: r.id, Signal: "KILL"})
	})
	select {
	case ended = <-this.ended:
	case <-c.Done():
		select {
		case ended = <-this.ended: // it came first
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

// whole says that all output has come that the other side counted.
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
				WithHint("something else in the sandbox made it forget them")
		}
	}
	return nil
}

// lost is why the end of a run will not be known: it was to be killed, and its
// machine was ended for it, or the machine ended by itself.
func (r *run) lost(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctxError(ctx, "process.wait")
	}
	r.c.Conn.mu.Lock()
	defer r.c.Conn.mu.Unlock()
	return r.c.dead("process.wait")
}

// Put unpacks the tar stream r in the sandbox, as FileSystem.unpack has it. It may
// return, with an error, before r was read to its end, and reading r may outlive
// it by one Read: close what feeds r.
func (c *Client) Put(ctx context.Context, dest string, r io.Reader) error {
	return c.Feed(r, func(id StreamID) error {
		return c.FileSystemUnpack(ctx, &FileSystemUnpackParams{Dest: dest, Stream: id})
	})
}

// Feed makes a command whose stream brings what r yields. An error of r is
// returned before the command's, which is its consequence. Reading r may outlive
// Feed by one Read.
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
			sent <- err // first: the answer to what comes now asks for it
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
			return sendErr // r failed, and the agent saw only its consequence
		}
	default:
	}
	return err
}

// Get writes path of the sandbox to w as a tar stream, as FileSystem.pack has it.
// What comes is hostile: unpack it with archive.Unpack.
func (c *Client) Get(ctx context.Context, path string, w io.Writer) error {
	id := c.NewStream()
	r, err := c.Receiver(id)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	answer := make(chan error, 1)
	go func() {
		err := c.FileSystemPack(ctx, &FileSystemPackParams{Path: path, Stream: id})
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
	return turnstone.Errorf(MethodFileSystemPack, turnstone.KindInternal, path,
		"the archive is cut off").WithHint("a file may have changed while it was read; try again")
}
