package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Conductor performs a script, and then answers the same commands of the host from the results.
// Its methods are safe for concurrent use.
type Conductor struct {
	calls []substrate.Call
	// spool returns a new file without a name for the output of a step.
	spool func() (*os.File, error)

	mu     sync.Mutex
	over   bool     // Run has returned
	played []result // of the commands that were performed, in order
	next   int      // the next command of the host, in played
}

// A result is what a command of the script led to.
type result struct {
	call  *substrate.Call
	value any // the answer
	err   error
	step  *ended // of Shell.execute without err
}

// An ended is a step that has ended.
type ended struct {
	end     wire.StepEnd
	records []wire.ShellRecord
	out     [2]*os.File // standard output and error
}

// New returns a Conductor of calls. spool returns a file without a name for a step's output, on the
// disk that the sandbox writes to, so that an endless output ends with that disk.
func New(calls []substrate.Call, spool func() (*os.File, error)) *Conductor {
	return &Conductor{calls: calls, spool: spool}
}

// Run performs the script as a client of the agent, whose function serve answers a connection. It
// returns when the script has ended, whatever its commands led to. An error means that the script
// could not be performed.
func (r *Conductor) Run(ctx context.Context, serve func(io.ReadWriteCloser) *wire.Conn) error {
	near, far := net.Pipe()
	defer far.Close()
	served := serve(far)
	if served == nil {
		return errors.New("the agent accepts no connection")
	}
	c := wire.NewClient(near)
	failed := false
	for i := range r.calls {
		call := &r.calls[i]
		if failed && call.Method == wire.MethodShellExecute {
			continue
		}
		res := r.perform(ctx, c, call)
		r.played = append(r.played, res)
		if res.err != nil {
			break // the host ends here, too
		}
		if res.step != nil && !call.Continue {
			exit := res.step.end.Exit
			failed = failed || exit.ExitCode != 0 || exit.Killed
		}
	}
	_ = c.Close()
	<-served.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return ctx.Err()
}

// perform performs one command.
func (r *Conductor) perform(ctx context.Context, c *wire.Client,
	call *substrate.Call) (res result) {
	res.call = call
	params, err := paramsOf(call)
	if err != nil {
		res.err = err
		return res
	}
	switch p := params.(type) {
	case *wire.SandboxConfigureParams:
		res.value, res.err = c.SandboxConfigure(ctx, p)
	case *wire.StateSetSessionParams:
		res.err = c.StateSetSession(ctx, p)
	case *wire.FileSystemUnpackParams:
		res.err = c.Put(ctx, p.Dest, io.NewSectionReader(call.Data, 0, call.Size))
	case *wire.ShellExecuteParams:
		res.step, res.err = r.execute(ctx, c, call, *p)
	default: // Scripted names no more
		res.value, res.err = c.StateFreeze(ctx)
	}
	return res
}

// execute runs a step.
func (r *Conductor) execute(ctx context.Context, c *wire.Client, call *substrate.Call,
	p wire.ShellExecuteParams) (*ended, error) {
	text := make([]byte, call.Size)
	if _, err := io.ReadFull(io.NewSectionReader(call.Data, 0, call.Size), text); err != nil {
		return nil, err
	}
	step := new(ended)
	for i := range step.out {
		var err error
		if step.out[i], err = r.spool(); err != nil {
			return nil, spoolError(p.Name, err)
		}
	}
	timed := ctx
	if call.Timeout > 0 {
		var cancel context.CancelFunc
		timed, cancel = context.WithTimeout(ctx, call.Timeout)
		defer cancel()
	}
	var mu sync.Mutex
	end, err := c.Execute(timed, p, string(text),
		wire.Stdio{Out: spooler{p.Name, step.out[0]}, Err: spooler{p.Name, step.out[1]}},
		func(more []wire.ShellRecord) {
			mu.Lock()
			defer mu.Unlock()
			step.records = append(step.records, more...)
		})
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && end.Path != ""
	if err != nil && !late {
		return nil, err
	}
	step.end = *end
	return step, nil
}

// A spooler keeps a step's output.
type spooler struct {
	step string
	f    *os.File
}

// Write implements io.Writer.
func (s spooler) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	if err != nil {
		err = spoolError(s.step, err)
	}
	return n, err
}

func spoolError(step string, err error) error {
	return turnstone.NewError(wire.MethodShellExecute, turnstone.KindExhausted,
		"the output of "+step, err).
		WithHint("a deterministic machine keeps outputs on its disk until the end: give it more " +
			"with disk:, or print less")
}

// Scripted reports whether a script can have the command.
func Scripted(method string) bool {
	switch method {
	case wire.MethodSandboxConfigure, wire.MethodStateSetSession, wire.MethodFileSystemUnpack,
		wire.MethodShellExecute, wire.MethodStateFreeze:
		return true
	}
	return false
}

// changes reports whether the command changes the machine, and so must not come between those of
// the script.
func changes(method string) bool {
	switch method {
	case wire.MethodFileSystemWrite, wire.MethodFileSystemMkdir, wire.MethodFileSystemMove,
		wire.MethodFileSystemRemove, wire.MethodProcessStart, wire.MethodStateThaw,
		wire.MethodSandboxSuspend, wire.MethodSandboxRenew, wire.MethodSandboxNetwork:
		return true
	}
	return Scripted(method)
}

// Answers reports whether the host's command is answered from the script's results, whatever state
// the agent is in.
func (r *Conductor) Answers(method string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over && r.next < len(r.played) && Scripted(method)
}

// Around answers a command of the host, or lets next perform it: during the script, after its last
// command, and if it changes nothing.
func (r *Conductor) Around(ctx context.Context, c *wire.Conn, method string, params any,
	next func() (any, error)) (any, error) {
	r.mu.Lock()
	if !r.over || r.next == len(r.played) || !changes(method) {
		r.mu.Unlock()
		return next()
	}
	res := &r.played[r.next]
	at := r.next + 1
	if res.call.Method == method {
		r.next++
	}
	r.mu.Unlock()
	if res.call.Method != method {
		return nil, diverges(method, at, "the script has "+res.call.Method)
	}
	if err := same(c, res.call, params); err != nil {
		return nil, diverges(method, at, err.Error())
	}
	if res.err != nil {
		return nil, res.err
	}
	if res.step != nil {
		return replay(ctx, c, res.step, params.(*wire.ShellExecuteParams))
	}
	return res.value, nil
}

func diverges(method string, at int, why string) error {
	return turnstone.Errorf(turnstone.Op(method), turnstone.KindIntegrity,
		fmt.Sprintf("command %d of the deterministic machine", at), "differs from its script: %s",
		why).WithHint("check that nothing changes the files that the turn adds, and run it again")
}
