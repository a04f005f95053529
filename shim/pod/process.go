package pod

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/wire"
)

// IO are the streams of a process on the host.
type IO struct {
	In       io.Reader // nil: none
	Out, Err io.Writer
	// Columns and Rows are the first size of the terminal; 0: 80 and 24.
	Columns, Rows uint32
	// Deadline bounds later writes to Out and Err: a reader that is gone must not hold the end of a
	// process that has ended.
	Deadline func(time.Time)
}

// drainFor is how long the readers of a process's output have after its end.
const drainFor = 10 * time.Second

// A Process is a process of a container, with the helper that waits for it.
type Process struct {
	pod      *Pod
	id, exec string // of the container and the exec
	name     string // in the sandbox
	by       *lane
	cancel   context.CancelFunc // ends it, whether it runs yet or not
	gone     chan struct{}      // closed when the helper has ended
	ended    chan struct{}
	code     int
	at       time.Time
	failed   error
	oom      bool
}

// Ended is closed when the process has ended and its output was delivered.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Exit returns how the process ended: 128 plus the signal's number if a signal ended it. Only after
// Ended.
func (p *Process) Exit() (code int, at time.Time) { return p.code, p.at }

// OutOfMemory reports whether the sandbox ended it, or one that it started, since its memory was used
// up. Only after Ended.
func (p *Process) OutOfMemory() bool { return p.oom }

// start starts the helper with args and returns when the process runs.
func (p *Pod) start(ctx context.Context, id, exec string, args []string, terminal bool,
	files IO) (*Process, error) {
	by, err := p.lanes.take()
	if err != nil {
		return nil, err
	}
	alive, cancel := context.WithCancel(context.Background())
	proc := &Process{pod: p, by: by, id: id, exec: exec, ended: make(chan struct{}),
		gone: make(chan struct{}), cancel: cancel, name: processName(id, exec)}
	params := wire.ProcessStartParams{ProcessID: proc.name, Argv: args, Cwd: "/"}
	if terminal {
		params.Terminal = &wire.ProcessTerminal{Columns: 80, Rows: 24}
		if isSize(files.Columns, files.Rows) {
			params.Terminal.Columns, params.Terminal.Rows = int64(files.Columns), int64(files.Rows)
		}
	}
	started := make(chan error, 1)
	go proc.run(alive, params, files, started)
	err = proc.awaitStart(ctx, started)
	go proc.settle()
	if err != nil {
		cancel() // nobody waits for it
		return nil, err
	}
	return proc, nil
}

// settle waits for the end and removes what an exec has left: a container may have millions of them
// in its life. The helper has removed its other files.
func (p *Process) settle() {
	<-p.gone
	p.pod.lanes.give(p.by)
	if p.exec != "" && !p.pod.sb.Ended() {
		ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
		if release, err := slot(ctx, p.pod.helpers); err == nil {
			_ = p.pod.removeFile(ctx, guest.File(p.id, p.exec, guest.FileStatus), false)
			release()
		}
		cancel()
	}
	close(p.ended)
}

// settleLimit bounds what the end of a process waits for.
const settleLimit = 5 * time.Second

// processName names the helper of a process in the sandbox: at most 64 bytes.
func processName(id, exec string) string {
	short := func(s string) string { return s[:min(len(s), 24)] }
	return short(id) + "." + short(exec) + "." + strconv.FormatInt(time.Now().UnixNano()%1e12, 36)
}

// run runs the helper until its end.
func (p *Process) run(ctx context.Context, params wire.ProcessStartParams, files IO,
	failed chan<- error) {
	defer close(p.gone)
	defer p.cancel()
	c := p.by
	var once sync.Once
	over := make(chan struct{})
	defer close(over)
	if files.Deadline != nil {
		go func() {
			// it may not have started: asked again until it has, or the run is over
			for {
				_, err := c.ProcessWait(context.Background(),
					&wire.ProcessWaitParams{ProcessID: p.name})
				if err == nil {
					once.Do(func() { files.Deadline(time.Now().Add(drainFor)) })
					return
				}
				select {
				case <-over:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
	}
	res, err := c.Start(ctx, params,
		wire.Stdio{In: files.In, Out: files.Out, Err: files.Err})
	p.at = time.Now()
	p.code, p.oom = int(res.Exit.ExitCode)&0xff, res.Exit.OOMKilled
	if err != nil && res.ProcessID == "" { // it has not run, or the sandbox is gone
		p.code, p.failed = 255, p.pod.sb.CauseOf(err)
		if p.pod.sb.Ended() {
			p.code = 128 + int(syscall.SIGKILL)
		}
		failed <- p.failed
	}
	if c.ProcessRelease(context.Background(),
		&wire.ProcessReleaseParams{ProcessID: p.name}) != nil {
		return // the sandbox keeps a bounded number of ended processes
	}
}

// awaitStart waits until the helper has reported that the process runs, or why it does not.
func (p *Process) awaitStart(ctx context.Context, failed <-chan error) error {
	for pause := 4 * time.Millisecond; ; pause = min(2*pause, 64*time.Millisecond) {
		over := false
		select {
		case err := <-failed:
			return err
		case <-p.gone:
			over = true
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		status, err := p.pod.readFile(ctx, guest.File(p.id, p.exec, guest.FileStatus),
			guest.MaxStatus)
		switch {
		case err == nil && status == guest.Started:
			return nil
		case err == nil:
			return fmt.Errorf("the container's process did not start: %s", printable(status))
		case over:
			return errors.Join(errors.New("the container's process did not start"), p.failed)
		case turnstone.KindOf(err) == turnstone.KindNotFound:
		default:
			return err
		}
	}
}

// printable makes a text of the guest safe for messages.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return strings.TrimSpace(s[:min(len(s), 500)])
}

// readFile reads a small file of the sandbox.
func (p *Pod) readFile(ctx context.Context, path string, most int64) (string, error) {
	return bounded(ctx, func() (string, error) {
		res, err := p.sb.Client().FileSystemRead(ctx, &wire.FileSystemReadParams{Path: path,
			Length: most})
		if err != nil {
			return "", err
		}
		return string(res.Data[:min(int64(len(res.Data)), most)]), nil
	})
}

// removeFile removes a file of the sandbox, or a folder with what is in it.
func (p *Pod) removeFile(ctx context.Context, path string, folder bool) error {
	_, err := bounded(ctx, func() (struct{}, error) {
		return struct{}{}, p.sb.Client().FileSystemRemove(ctx,
			&wire.FileSystemRemoveParams{Path: path, Recursive: folder})
	})
	return err
}

// writeJSON writes a file of the sandbox.
func (p *Pod) writeJSON(ctx context.Context, path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = bounded(ctx, func() (struct{}, error) {
		c := p.sb.Client()
		return struct{}{}, c.Feed(bytes.NewReader(b), func(id wire.StreamID) error {
			_, err := c.FileSystemWrite(ctx, &wire.FileSystemWriteParams{Path: path, Stream: id,
				Mode: 0o600, Parents: true})
			return err
		})
	})
	return err
}

// bounded calls f, which asks the sandbox, and returns when ctx ends, whether the sandbox answers
// or not: f ends with the sandbox.
func bounded[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		v, err := f()
		answered <- answer{v, err}
	}()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("the sandbox does not answer: %w", ctx.Err())
	}
}

// maxHelpers bounds the commands of the helper that run, or that the sandbox has not answered.
const maxHelpers = 64

// helper runs a command of the helper and returns its output, which is untrusted and bounded.
func (p *Pod) helper(ctx context.Context, in io.Reader, args ...string) (string, error) {
	release, err := slot(ctx, p.helpers)
	if err != nil {
		return "", err
	}
	return bounded(ctx, func() (string, error) {
		defer release()
		return p.runHelper(ctx, in, args)
	})
}

func (p *Pod) runHelper(ctx context.Context, in io.Reader, args []string) (string, error) {
	var out, errs limited
	res, err := p.sb.Client().Start(ctx, wire.ProcessStartParams{
		Argv: append([]string{guest.Program}, args...), Cwd: "/", KillOnDisconnect: true},
		wire.Stdio{In: in, Out: &out, Err: &errs})
	if err != nil {
		return "", p.sb.CauseOf(err)
	}
	if res.Exit.ExitCode != 0 {
		return "", fmt.Errorf("in the sandbox: %s", printable(errs.String()))
	}
	return out.String(), nil
}

// limited keeps the beginning of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := guest.MaxStats - l.Len(); room > 0 {
		_, _ = l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// Kill sends a signal to the process.
func (p *Process) Kill(ctx context.Context, sig syscall.Signal) error {
	exec := p.exec
	if exec == "" {
		exec = "-"
	}
	_, err := p.pod.helper(ctx, nil, guest.CmdKill, p.id, exec, strconv.Itoa(int(sig)))
	return err
}

// isSize reports whether a terminal may have the size.
func isSize(columns, rows uint32) bool {
	return columns > 0 && rows > 0 && columns <= 0xffff && rows <= 0xffff
}

// Resize changes the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, columns, rows uint32) error {
	if !isSize(columns, rows) {
		return nil
	}
	_, err := bounded(ctx, func() (struct{}, error) {
		return struct{}{}, p.by.ProcessResize(ctx, &wire.ProcessResizeParams{ProcessID: p.name,
			Columns: int64(columns), Rows: int64(rows)})
	})
	return err
}
