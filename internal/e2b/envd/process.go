package envd

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/e2b/envdapi/process"
	"turnstone.dev/turnstone/wire"
)

// processes implements processconnect.ProcessHandler.
type processes struct{ s *Service }

// Bounds of commands.
const (
	maxWords    = 1000
	maxSize     = 65535 // of a terminal
	cleanupTime = 10 * time.Second
)

// Start starts a process, and follows it until it ends or its caller leaves. It continues if the
// caller leaves, and is killed when the time of the call is up, as E2B's daemon does.
func (p processes) Start(ctx context.Context, r *connect.Request[process.StartRequest],
	s *connect.ServerStream[process.StartResponse]) error {
	f := newFollower(func(e *process.ProcessEvent) error {
		return s.Send(&process.StartResponse{Event: e})
	})
	c, b, err := open(ctx, wire.Options{OnEvent: f.event})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	start, err := p.params(ctx, c, b, r)
	if err != nil {
		return err
	}
	if f.terminal = start.Terminal != nil; f.terminal {
		start.Stdin = false
	}
	if err := f.streams(c, &start.StdoutStream, &start.StderrStream); err != nil {
		return err
	}
	res, err := c.ProcessStart(ctx, start)
	if kindOf(err) == turnstone.KindNotFound {
		err = fail(connect.CodeInvalidArgument, text(err)) // of the program: no process is missing
	}
	if err != nil {
		return err
	}
	f.id = res.ProcessID
	if due, ok := ctx.Deadline(); ok {
		defer p.s.timers.kill(b, f.id, due)(&f.ended)
	}
	err = f.follow(ctx, c, res.PID, interval(r.Header()))
	if f.ended { // nobody asks for it again
		_ = c.Post(ctx, wire.MethodProcessRelease, &wire.ProcessReleaseParams{ProcessID: f.id})
	}
	return err
}

// params returns the command of a request for the agent.
func (p processes) params(ctx context.Context, c *wire.Conn, b *Box,
	r *connect.Request[process.StartRequest]) (*wire.ProcessStartParams, error) {
	q := r.Msg.GetProcess()
	name, err := userOf(r.Header())
	if err != nil {
		return nil, err
	}
	v, err := visit(ctx, c, b, name)
	if err != nil {
		return nil, err
	}
	if err := checkConfig(q); err != nil {
		return nil, err
	}
	start := &wire.ProcessStartParams{Argv: append([]string{q.Cmd}, q.Args...), User: v.name,
		Cwd: b.Workdir, Stdin: r.Msg.Stdin == nil || *r.Msg.Stdin}
	for _, name := range slices.Sorted(keysOf(q.Envs)) {
		start.Env = append(start.Env, name+"="+q.Envs[name])
	}
	if v.named {
		start.Cwd = v.home
	}
	if q.Cwd != nil && *q.Cwd != "" {
		if start.Cwd, err = v.resolve(*q.Cwd); err != nil {
			return nil, err
		}
		info, err := c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: start.Cwd})
		if kindOf(err) == turnstone.KindNotFound ||
			err == nil && info.File.Type != wire.FileSystemFileInfoTypeDirectory {
			return nil, fail(connect.CodeInvalidArgument, "cwd '"+start.Cwd+"' does not exist")
		}
	}
	if r.Msg.Pty != nil {
		if start.Terminal, err = terminal(r.Msg.Pty); err != nil {
			return nil, err
		}
	}
	return start, nil
}

func keysOf(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// checkConfig refuses what no process can have.
func checkConfig(q *process.ProcessConfig) error {
	switch {
	case q.GetCmd() == "":
		return fail(connect.CodeInvalidArgument, "the process has no command")
	case len(q.Args) >= maxWords || len(q.Envs) > maxWords:
		return fail(connect.CodeInvalidArgument, "the process has too many arguments or variables")
	case strings.ContainsRune(q.Cmd+strings.Join(q.Args, ""), 0):
		return fail(connect.CodeInvalidArgument, "the command has a zero byte")
	}
	for name, value := range q.Envs {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return fail(connect.CodeInvalidArgument, "no process can have the variable "+name)
		}
	}
	return nil
}

func terminal(p *process.PTY) (*wire.ProcessTerminal, error) {
	size := p.GetSize()
	if size.GetCols() == 0 || size.GetRows() == 0 || size.Cols > maxSize || size.Rows > maxSize {
		return nil, fail(connect.CodeInvalidArgument, "the terminal has no size from 1 to 65535")
	}
	return &wire.ProcessTerminal{Columns: int64(size.Cols), Rows: int64(size.Rows)}, nil
}

// Connect follows a process that runs, from the oldest output that is kept.
func (p processes) Connect(ctx context.Context, r *connect.Request[process.ConnectRequest],
	s *connect.ServerStream[process.ConnectResponse]) error {
	f := newFollower(func(e *process.ProcessEvent) error {
		return s.Send(&process.ConnectResponse{Event: e})
	})
	c, _, err := open(ctx, wire.Options{OnEvent: f.event})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	info, err := find(ctx, c, r.Msg.Process)
	if err != nil {
		return err
	}
	f.id, f.terminal = info.ProcessID, info.Terminal
	q := &wire.ProcessAttachParams{ProcessID: info.ProcessID}
	if err := f.streams(c, &q.StdoutStream, &q.StderrStream); err != nil {
		return err
	}
	if _, err := c.ProcessAttach(ctx, q); err != nil {
		return err
	}
	return f.follow(ctx, c, info.PID, interval(r.Header()))
}

// keepalive is the time between two signs of life, and its bounds.
const (
	keepalive      = 90 * time.Second
	leastKeepalive = time.Second
	mostKeepalive  = time.Hour
)

// interval returns the time between two signs of life that a request asks for.
func interval(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil {
		return keepalive
	}
	return min(max(time.Duration(min(n, math.MaxInt32))*time.Second, leastKeepalive), mostKeepalive)
}

// A follower sends the life of a process as events.
type follower struct {
	id       string
	terminal bool
	outs     [2]*wire.Receiver
	exited   chan struct{} // closed at the end
	once     sync.Once
	end      wire.ProcessExitedEvent // valid after exited
	ended    bool                    // the process has

	mu   sync.Mutex
	send func(*process.ProcessEvent) error
}

func newFollower(send func(*process.ProcessEvent) error) *follower {
	return &follower{exited: make(chan struct{}), send: send}
}

// event takes the end of the process. The connection has one process.
func (f *follower) event(e wire.Event) {
	if e.Method != wire.EventProcessExited {
		return
	}
	if v, err := wire.DecodeEvent(e); err == nil {
		if x, ok := v.(*wire.ProcessExitedEvent); ok {
			f.once.Do(func() { f.end = *x; close(f.exited) })
		}
	}
}

// streams names the streams of both outputs.
func (f *follower) streams(c *wire.Conn, out, errs *wire.StreamID) (err error) {
	*out, *errs = c.NewStream(), c.NewStream()
	for n, id := range []wire.StreamID{*out, *errs} {
		if f.outs[n], err = c.Receiver(id); err != nil {
			return err
		}
	}
	return nil
}

// follow sends the start, both outputs, signs of life, and the end.
func (f *follower) follow(ctx context.Context, c *wire.Conn, pid int64, every time.Duration) error {
	if pid < 0 || pid > math.MaxUint32 {
		return turnstone.Errorf("e2b.start", turnstone.KindInternal, "the process", "has the number %d", pid)
	}
	if err := f.tell(&process.ProcessEvent{Event: &process.ProcessEvent_Start{
		Start: &process.ProcessEvent_StartEvent{Pid: uint32(pid)}}}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	alive := time.NewTicker(every)
	defer alive.Stop()
	copied := make(chan error, 2)
	for n := range f.outs {
		go func() { copied <- f.copy(n) }()
	}
	left, done := len(f.outs), f.exited
	for left > 0 || done != nil {
		select {
		case err := <-copied:
			if err != nil {
				_ = c.Close() // ends the other copy
				for range left - 1 {
					<-copied
				}
				return f.lost(ctx, err)
			}
			left--
		case <-done:
			done, f.ended = nil, true
		case <-alive.C:
			if err := f.tell(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{
				Keepalive: &process.ProcessEvent_KeepAlive{}}}); err != nil {
				_ = c.Close()
				for range left {
					<-copied
				}
				return err
			}
		case <-c.Done():
			if done == nil || isClosed(f.exited) {
				done, f.ended = nil, true
				if left == 0 {
					continue
				}
			}
			for range left {
				<-copied
			}
			if isClosed(f.exited) {
				left, done, f.ended = 0, nil, true
				continue
			}
			return f.lost(ctx, errors.New("its connection has ended"))
		}
	}
	return f.tell(endOf(f.end.Exit))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lost is the error for a process whose end is unknown.
func (f *follower) lost(ctx context.Context, err error) error {
	if why := ctx.Err(); why != nil {
		return why
	}
	return turnstone.NewError("e2b.follow", turnstone.KindDead,
		"the connection to the sandbox ended before the process", err)
}

// copy sends an output.
func (f *follower) copy(n int) error {
	buf := make([]byte, wire.SendChunk)
	for {
		got, err := f.outs[n].Read(buf)
		if got > 0 {
			if err := f.tell(f.data(n, slices.Clone(buf[:got]))); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (f *follower) data(n int, b []byte) *process.ProcessEvent {
	d := &process.ProcessEvent_DataEvent{}
	switch {
	case f.terminal:
		d.Output = &process.ProcessEvent_DataEvent_Pty{Pty: b}
	case n == 0:
		d.Output = &process.ProcessEvent_DataEvent_Stdout{Stdout: b}
	default:
		d.Output = &process.ProcessEvent_DataEvent_Stderr{Stderr: b}
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: d}}
}

// tell sends an event. It waits while the caller does not read, and the process with it.
func (f *follower) tell(e *process.ProcessEvent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.send(e)
}

// endOf returns the event of an end, in the words of Go's os.ProcessState, which E2B's daemon passes on.
func endOf(x wire.ProcessExit) *process.ProcessEvent {
	e := &process.ProcessEvent_EndEvent{ExitCode: int32(x.ExitCode), Exited: x.Signal == "",
		Status: "exit status " + strconv.FormatInt(x.ExitCode, 10)}
	if x.Signal != "" {
		e.ExitCode, e.Status = -1, "signal: "+syscall.Signal(x.ExitCode-signaled).String()
		if x.CoreDumped {
			e.Status += " (core dumped)"
		}
	}
	if e.ExitCode != 0 {
		e.Error = &e.Status
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_End{End: e}}
}

// signaled is added to the number of a signal that has ended a process.
const signaled = 128

// List lists the processes that clients have started and that run.
func (p processes) List(ctx context.Context, _ *connect.Request[process.ListRequest]) (
	*connect.Response[process.ListResponse], error) {
	c, _, err := open(ctx, wire.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	all, err := c.ProcessList(ctx)
	if err != nil {
		return nil, err
	}
	out := &process.ListResponse{}
	for _, i := range all.Processes {
		if i.Exit != nil || len(i.Argv) == 0 || i.PID <= 0 || i.PID > math.MaxUint32 {
			continue
		}
		cwd := path.Clean(i.Cwd)
		out.Processes = append(out.Processes, &process.ProcessInfo{Pid: uint32(i.PID),
			Config: &process.ProcessConfig{Cmd: i.Argv[0], Args: i.Argv[1:], Cwd: &cwd}})
	}
	return connect.NewResponse(out), nil
}

// find returns the running process that a selector names.
func find(ctx context.Context, c *wire.Conn, s *process.ProcessSelector) (*wire.ProcessProcessInfo,
	error) {
	pid, ok := s.GetSelector().(*process.ProcessSelector_Pid)
	if !ok {
		return nil, fail(connect.CodeNotFound, "no process is found by its tag: use its pid")
	}
	all, err := c.ProcessList(ctx)
	if err != nil {
		return nil, err
	}
	for n, i := range all.Processes {
		if i.Exit == nil && i.PID == int64(pid.Pid) {
			return &all.Processes[n], nil
		}
	}
	return nil, fail(connect.CodeNotFound, "process with pid "+strconv.FormatUint(uint64(pid.Pid), 10)+
		" not found")
}
