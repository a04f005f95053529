// Package record follows the commands of a sandbox for the host that records them: what was
// started, with which input, and how it ended.
package record

import (
	"context"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// Bounds of what a record has of a command, in bytes.
const (
	maxArgv   = 64 << 10
	maxScript = 256 << 10
	maxEnv    = 2 << 20 // more could not be given to a program
	maxInput  = 64 << 10
)

// A Table has the commands whose end was not reported yet. Its methods are safe for concurrent use.
type Table struct {
	mu       sync.Mutex
	to       *wire.Conn // nil: nobody records now
	on       bool       // a connection has recorded, and another one will continue
	commands map[*process.Process]*Command
}

// NewTable returns an empty table, which records nothing.
func NewTable() *Table { return &Table{commands: make(map[*process.Process]*Command)} }

// Record makes c the connection that records, until it ends.
func (t *Table) Record(c *wire.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to, t.on = c, true
	context.AfterFunc(c.Context(), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.to == c {
			t.to = nil
		}
	})
}

// Recording reports whether a connection records now.
func (t *Table) Recording() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to != nil
}

// recorder returns the connection that records now; nil: none.
func (t *Table) recorder() *wire.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to
}

// Of returns the record of p if c records; nil otherwise.
func (t *Table) Of(c *wire.Conn, p *process.Process) *Command {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to != c {
		return nil
	}
	return t.commands[p]
}

// A Command is a command that is recorded. Its methods are safe for concurrent use.
type Command struct {
	t *Table

	started *wire.SandboxCommandStartedEvent

	mu    sync.Mutex
	input []byte // the beginning
	fed   int64
}

// Around adds the record of a command to its start, if there is or was a connection that records. e
// describes the command. attach attaches the connection that records to the process before the
// first byte of its output was read.
func (t *Table) Around(e *wire.SandboxCommandStartedEvent, spec *process.Spec,
	attach func(to *wire.Conn, c *Command, p *process.Process)) {
	t.mu.Lock()
	on := t.on
	t.mu.Unlock()
	if !on {
		return
	}
	bound(e)
	c := &Command{t: t, started: e}
	if spec.Terminal == nil {
		spec.Fed = c.feed
	}
	before := spec.Before
	spec.Before = func(p *process.Process) {
		if to := c.begin(p); to != nil {
			attach(to, c, p)
		}
		if before != nil {
			before(p)
		}
	}
}

// begin adds p to the table and returns the connection that records; nil: the next one asks for p.
func (c *Command) begin(p *process.Process) *wire.Conn {
	if p.Attach() != nil { // until its end was sent, so that a client cannot make p forgotten
		return nil
	}
	c.started.ProcessID, c.started.Cwd = p.ID, p.Cwd
	c.started.Started = p.Started.UTC().Format(time.RFC3339Nano)
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.t.commands[p] = c
	return c.t.to
}

// feed notes what the process was given as its standard input.
func (c *Command) feed(data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fed += int64(len(data))
	if room := maxInput - len(c.input); room > 0 {
		c.input = append(c.input, data[:min(room, len(data))]...)
	}
}

// Begun sends the start of the command: to each connection, because a link's end can lose what was
// sent.
func (c *Command) Begun(ctx context.Context, to *wire.Conn) error {
	return to.EmitSandboxCommandStarted(ctx, c.started)
}

// Ended sends the end of p, whose output was sent.
func (c *Command) Ended(ctx context.Context, to *wire.Conn, p *process.Process,
	exit wire.ProcessExit) {
	_, stdout := p.Out[1].Range()
	_, stderr := p.Out[2].Range()
	c.mu.Lock()
	e := &wire.SandboxCommandEndedEvent{ProcessID: p.ID, Exit: exit, Input: c.input,
		InputSize: c.fed, StdoutEnd: stdout, StderrEnd: stderr}
	c.mu.Unlock()
	if to.EmitSandboxCommandEnded(ctx, e) != nil {
		return // the next connection asks again
	}
	c.t.mu.Lock()
	_, held := c.t.commands[p]
	delete(c.t.commands, p)
	c.t.mu.Unlock()
	if held {
		p.Detach()
	}
}

// bound cuts what would make a record too large.
func bound(e *wire.SandboxCommandStartedEvent) {
	if len(e.Script) > maxScript {
		e.Script, e.Cut = strings.ToValidUTF8(e.Script[:maxScript], ""), true
	}
	left := maxArgv
	for i, arg := range e.Argv {
		if left -= len(arg) + 1; left < 0 {
			e.Argv, e.Cut = append(e.Argv[:i:i], arg[:max(0, left+len(arg))]), true
			break
		}
	}
	left = maxEnv
	for i, kv := range e.Env {
		if left -= len(kv) + 1; left < 0 {
			e.Env, e.Cut = e.Env[:i:i], true
			break
		}
	}
}
