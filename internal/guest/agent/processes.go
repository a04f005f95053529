package agent

import (
	"cmp"
	"context"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// processes answers the domain Process.
type processes struct{ a *Agent }

// Start implements Process.start.
func (s *processes) Start(ctx context.Context, c *wire.Conn,
	p *wire.ProcessStartParams) (*wire.ProcessStartResult, error) {
	const op = wire.MethodProcessStart
	switch {
	case p.Detach && (p.StdoutStream != 0 || p.StderrStream != 0):
		return nil, Invalid(op, "detach",
			"a process without an attached connection has no output streams")
	case p.Stdin && p.StdinStream != 0:
		return nil, Invalid(op, "stdin",
			"standard input comes from a stream or from Process.write, not from both")
	}
	grace, err := lingerOf(p)
	if err != nil {
		return nil, err
	}
	argv, cwd := p.Argv, p.Cwd
	if p.Image {
		var dir string
		if argv, dir, err = s.a.defaults.program(argv); err != nil {
			return nil, err
		}
		cwd = cmp.Or(cwd, dir)
	}
	spec := process.Spec{ID: p.ProcessID, Argv: argv, Env: s.a.shell.baseEnv(), More: p.Env,
		Stdin: p.Stdin || p.StdinStream != 0}
	spec.Cwd, spec.User = s.a.defaults.of(cwd, p.User, s.a.opt.Cwd)
	spec.Env = ofUser(spec.User, spec.Env)
	if t := p.Terminal; t != nil {
		spec.Terminal = &process.Terminal{Columns: int(t.Columns), Rows: int(t.Rows)}
		spec.Env = process.MergeEnv(spec.Env, []string{"TERM=xterm-256color"})
	}
	cl := s.a.client(c)
	var failed error
	if !p.Detach {
		spec.Before = cl.attachAtStart(ctx, nil, [2]wanted{
			{stream: p.StdoutStream, window: p.Window}, {stream: p.StderrStream, window: p.Window}},
			grace, &failed)
	}
	s.a.records.Around(&wire.SandboxCommandStartedEvent{Argv: argv, Env: p.Env,
		Secrets: p.Secrets, User: spec.User, Terminal: p.Terminal != nil}, &spec, s.a.attachRecorder)
	s.a.activity.begin()
	spec.Ended = s.a.activity.end
	proc, err := s.a.procs.Start(spec)
	if err != nil {
		s.a.activity.end()
		return nil, err
	}
	err = unattached(c, proc, failed)
	if err != nil {
		return nil, err
	}
	if p.KillOnDisconnect {
		cl.killWith(proc)
	}
	if p.StdinStream != 0 {
		s.feedFirst(c, proc, p.StdinStream)
	}
	return &wire.ProcessStartResult{ProcessID: proc.ID, PID: int64(proc.Number())}, nil
}

// Prepare implements Process.prepare.
func (s *processes) Prepare(_ context.Context, _ *wire.Conn, p *wire.ProcessPrepareParams) error {
	_, user := s.a.defaults.of("", p.User, "")
	return s.a.procs.Park(p.Program, user, ofUser(user, s.a.shell.baseEnv()))
}

// attachAtStart returns a function that attaches to a process before any of its output is read.
// Sending begins after the answer to the command.
func (cl *client) attachAtStart(ctx context.Context, st *step, want [2]wanted,
	grace time.Duration, failed *error) func(*process.Process) {
	return func(p *process.Process) {
		if st != nil {
			st.p = p
		}
		if grace > 0 {
			cl.a.lingers.add(cl.a, p, grace)
		}
		at, err := cl.attach(p, st, process.Owner, want)
		if err != nil {
			*failed = err
			return
		}
		if l := cl.a.lingers.get(p); l != nil {
			l.arrived(at)
		}
		wire.AfterReply(ctx, at.begin)
	}
}

// unattached ends a process to which its client could not be attached, because nobody would learn
// of the process. A process of a client that disconnected meanwhile continues.
func unattached(c *wire.Conn, p *process.Process, failed error) error {
	if failed == nil || c.Context().Err() != nil {
		return nil
	}
	_ = p.Signal(syscall.SIGKILL) // if it has not ended
	return failed
}

// Attach implements Process.attach.
func (s *processes) Attach(ctx context.Context, c *wire.Conn,
	p *wire.ProcessAttachParams) (*wire.ProcessAttachResult, error) {
	proc, err := s.a.procs.Get(wire.MethodProcessAttach, p.ProcessID)
	if err != nil {
		return nil, err
	}
	want := [2]wanted{
		{p.StdoutOffset, p.StdoutStream, p.Window}, {p.StderrOffset, p.StderrStream, p.Window}}
	var at *attachment
	switch {
	case p.TakeOver:
		at, err = s.takeOver(ctx, c, proc, p, want)
	case p.StdinStream != 0:
		err = Invalid(wire.MethodProcessAttach, "stdinStream", "it needs takeOver")
	default:
		at, err = s.a.client(c).attachAgain(ctx, proc, want, process.Follower)
	}
	if err != nil {
		return nil, err
	}
	res := &wire.ProcessAttachResult{Process: *wireInfo(proc),
		StdoutOffset: at.outs[0].offset, StderrOffset: at.outs[1].offset}
	wire.AfterReply(ctx, at.begin)
	if p.TakeOver {
		res.StdinOffset = proc.Accepted()
		s.feedOn(c, proc, p.StdinStream)
	}
	return res, nil
}

// Detach implements Process.detach.
func (s *processes) Detach(ctx context.Context, c *wire.Conn, p *wire.ProcessDetachParams) error {
	proc, err := s.a.procs.Get(wire.MethodProcessDetach, p.ProcessID)
	if err != nil {
		return err
	}
	if s.a.client(c).detach(ctx, proc) == nil {
		return turnstone.Errorf(wire.MethodProcessDetach, turnstone.KindNotFound, proc.ID,
			"this connection is not attached to it").
			WithHint("attach to the process first with Process.attach")
	}
	return nil
}

// List implements Process.list.
func (s *processes) List(context.Context, *wire.Conn) (*wire.ProcessListResult, error) {
	res := &wire.ProcessListResult{Processes: []wire.ProcessProcessInfo{}}
	for _, p := range s.a.procs.List() {
		res.Processes = append(res.Processes, *wireInfo(p))
	}
	return res, nil
}

// Write implements Process.write.
func (s *processes) Write(ctx context.Context, _ *wire.Conn, p *wire.ProcessWriteParams) error {
	proc, err := s.a.procs.Get(wire.MethodProcessWrite, p.ProcessID)
	if err != nil {
		return err
	}
	return proc.Write(ctx, p.Data)
}

// CloseStdin implements Process.closeStdin.
func (s *processes) CloseStdin(ctx context.Context, _ *wire.Conn,
	p *wire.ProcessCloseStdinParams) error {
	proc, err := s.a.procs.Get(wire.MethodProcessCloseStdin, p.ProcessID)
	if err != nil {
		return err
	}
	return proc.CloseStdin(ctx)
}

// Signal implements Process.signal.
func (s *processes) Signal(_ context.Context, _ *wire.Conn, p *wire.ProcessSignalParams) error {
	sig, err := process.ParseSignal(p.Signal)
	if err != nil {
		return err
	}
	proc, err := s.a.procs.Get(wire.MethodProcessSignal, p.ProcessID)
	if err != nil {
		return err
	}
	return proc.Signal(sig)
}

// Resize implements Process.resize.
func (s *processes) Resize(_ context.Context, _ *wire.Conn, p *wire.ProcessResizeParams) error {
	proc, err := s.a.procs.Get(wire.MethodProcessResize, p.ProcessID)
	if err != nil {
		return err
	}
	return proc.Resize(process.Terminal{Columns: int(p.Columns), Rows: int(p.Rows)})
}

// Wait implements Process.wait.
func (s *processes) Wait(ctx context.Context, _ *wire.Conn,
	p *wire.ProcessWaitParams) (*wire.ProcessWaitResult, error) {
	proc, err := s.a.procs.Get(wire.MethodProcessWait, p.ProcessID)
	if err != nil {
		return nil, err
	}
	exit, err := proc.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return &wire.ProcessWaitResult{Exit: *wireExit(exit)}, nil
}

// Release implements Process.release.
func (s *processes) Release(_ context.Context, _ *wire.Conn, p *wire.ProcessReleaseParams) error {
	proc, err := s.a.procs.Get(wire.MethodProcessRelease, p.ProcessID)
	if err != nil {
		return err
	}
	return s.a.procs.Release(proc)
}

// Acknowledge implements Process.acknowledge. A late acknowledgement is not an error.
func (s *processes) Acknowledge(_ context.Context, c *wire.Conn,
	p *wire.ProcessAcknowledgeParams) error {
	proc, err := s.a.procs.Get(wire.MethodProcessAcknowledge, p.ProcessID)
	if err != nil {
		return err
	}
	cl := s.a.client(c)
	cl.mu.Lock()
	at := cl.attached[proc]
	cl.mu.Unlock()
	if at == nil {
		return nil
	}
	switch p.Stream {
	case wire.ProcessStreamStdout:
		return at.outs[0].acknowledge(p.Offset)
	case wire.ProcessStreamStderr:
		return at.outs[1].acknowledge(p.Offset)
	}
	return Invalid(wire.MethodProcessAcknowledge, string(p.Stream),
		"the streams are stdout and stderr")
}

func wireExit(e process.Exit) *wire.ProcessExit {
	return &wire.ProcessExit{ExitCode: int64(e.Code), Signal: e.Signal, CoreDumped: e.Core,
		OOMKilled: e.OOMKilled, DiskFull: e.DiskFull, Killed: e.Killed, Duration: int64(e.Duration)}
}

func wireInfo(p *process.Process) *wire.ProcessProcessInfo {
	info := &wire.ProcessProcessInfo{ProcessID: p.ID, Argv: p.Argv, Cwd: p.Cwd,
		PID:     int64(p.Number()),
		Started: p.Started.Format(time.RFC3339Nano), Terminal: p.Terminal, Attached: p.Attached()}
	info.StdoutFirst, info.StdoutEnd = p.Out[1].Range()
	info.StderrFirst, info.StderrEnd = p.Out[2].Range()
	if p.Ended() {
		info.Exit = wireExit(p.Exit())
	}
	return info
}
