// Package agent is the program inside a sandbox. It starts processes, keeps the
// shell session and moves files, and answers calls of package wire. In a microVM
// it is PID 1 and also brings the guest up; see Boot.
//
// It trusts the host, which owns the sandbox, and nothing that runs beside it:
// what steps leave behind is read with bounds.
package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"turnstone.dev/turnstone"
	wire "turnstone.dev/turnstone/oldwire"
)

// Options say what an agent works with. The zero value serves in the process's
// own root, without control groups: processes are killed by process group.
type Options struct {
	RunDir string // for scripts and captures, as processes see it; default "/run/turn"
	Chroot string // what processes are started in; default: the agent's own root
	Cwd    string // the session's first working directory; default "/workspace"
	Env    []string

	groups    *cgroups                                                 // nil: process groups only
	reap      reaper                                                   // nil: one wait per process
	configure func(wire.ConfigureParams) (wire.ConfigureResult, error) // nil: Sandbox.configure is refused
}

// DefaultEnv is the environment that every process starts from.
func DefaultEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "USER=root", "SHELL=/bin/bash", "TERM=dumb",
	}
}

// An Agent answers the calls of one connection. It is safe for concurrent use.
type Agent struct {
	opt        Options
	procs      *procTable
	shell      *shell
	buffers    buffers
	configured atomic.Bool
}

// New returns an agent. Close it when it has served.
func New(opt Options) (*Agent, error) {
	if opt.RunDir == "" {
		opt.RunDir = "/run/turn"
	}
	if opt.Cwd == "" {
		opt.Cwd = "/workspace"
	}
	if opt.Env == nil {
		opt.Env = DefaultEnv()
	}
	if opt.reap == nil {
		opt.reap = directReaper{}
	}
	a := &Agent{opt: opt, buffers: make(buffers, 8)}
	a.configured.Store(opt.configure == nil)
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	a.procs = newProcTable(a, null)
	if a.shell, err = newShell(a); err != nil {
		_ = null.Close()
		return nil, err
	}
	return a, nil
}

// Serve answers calls over conn until it ends, then closes it. The error is nil
// when the host closed the connection in good order.
func (a *Agent) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	return wire.Serve(ctx, conn, a.handle)
}

// Close kills every process that the agent started and lets go of their pipes.
func (a *Agent) Close() error { return a.procs.close() }

// handle answers one call.
func (a *Agent) handle(ctx context.Context, c *wire.Call) error {
	if !a.configured.Load() && c.Method != wire.MethodConfigure {
		return &turnstone.Error{Op: c.Method, Kind: turnstone.Invalid, Subject: "sandbox",
			Err: errors.New("it is not configured yet"), Hint: "call Sandbox.configure first"}
	}
	switch c.Method {
	case wire.MethodConfigure:
		return a.handleConfigure(c)
	case wire.MethodStats:
		return reply(c)(a.stats())
	case wire.MethodExecute:
		return call(ctx, c, a.shell.execute)
	case wire.MethodStart:
		return call(ctx, c, a.start)
	case wire.MethodOutput:
		return stream(ctx, c, a.procs.output)
	case wire.MethodStdin:
		return stream(ctx, c, a.procs.stdin)
	case wire.MethodKill:
		return a.handleKill(c)
	case wire.MethodPut:
		return a.put(ctx, c)
	case wire.MethodGet:
		return a.get(ctx, c)
	}
	return &turnstone.Error{Op: "agent.call", Kind: turnstone.Invalid, Subject: c.Method,
		Err: errors.New("unknown method"), Hint: "the host's program and the agent may be of different versions"}
}

func (a *Agent) handleConfigure(c *wire.Call) error {
	var p wire.ConfigureParams
	if err := c.Decode(&p); err != nil {
		return err
	}
	if a.opt.configure == nil || !a.configured.CompareAndSwap(false, true) {
		return &turnstone.Error{Op: c.Method, Kind: turnstone.Invalid, Subject: "sandbox",
			Err: errors.New("it is configured already, or is not a machine of its own")}
	}
	res, err := a.opt.configure(p)
	if err != nil {
		a.configured.Store(false)
		return err
	}
	return c.Reply(res)
}

func (a *Agent) handleKill(c *wire.Call) error {
	var p wire.KillParams
	if err := c.Decode(&p); err != nil {
		return err
	}
	a.procs.kill(p.ID)
	return c.Reply(nil)
}

// call decodes a call's parameters, runs f, and replies with its result.
func call[P any](ctx context.Context, c *wire.Call, f func(context.Context, P) (any, error)) error {
	var p P
	if err := c.Decode(&p); err != nil {
		return err
	}
	return reply(c)(f(ctx, p))
}

// stream decodes a call's parameters and lets f move raw bytes over it.
func stream(ctx context.Context, c *wire.Call, f func(context.Context, wire.StreamParams, *wire.Call)) error {
	var p wire.StreamParams
	if err := c.Decode(&p); err != nil {
		return err
	}
	f(ctx, p, c)
	return nil
}

func reply(c *wire.Call) func(any, error) error {
	return func(result any, err error) error {
		if err != nil {
			return err
		}
		return c.Reply(result)
	}
}

// buffers is a free list of copy buffers. Unlike a sync.Pool it survives
// garbage collections, so that a restored agent finds them in warm memory.
type buffers chan []byte

const bufferSize = 256 << 10

func (b buffers) get() []byte {
	select {
	case buf := <-b:
		return buf
	default:
		return make([]byte, bufferSize)
	}
}

func (b buffers) put(buf []byte) {
	select {
	case b <- buf:
	default:
	}
}
