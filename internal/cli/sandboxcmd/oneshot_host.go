package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// The sandbox of turn exec on a host is removed at the command's end. If this client is gone by then,
// the sandbox stops spareTime after the latest time of that end. Removing it takes at most removeTime.
const (
	defaultTime = time.Hour
	spareTime   = 10 * time.Minute
	removeTime  = 30 * time.Second
)

// A remoteExec is a command in a sandbox of a host that is made for it.
type remoteExec struct {
	*ExecCmd
	boxes   cli.Sandboxes
	command sandboxes.Command
	network *turnstone.NetworkSpec
	tell    func(string) // progress, and which files are not copied
}

// run runs the command, and returns its exit code. The environment goes through the channel with the
// command: the server sees that of a sandbox.
func (r *remoteExec) run(ctx context.Context) (int, error) {
	adds, gets := flags.Transfers(r.Add), flags.Transfers(r.Get)
	base, err := r.boxes.Shape(ctx, r.Image, r.On())
	if err != nil {
		return 0, &notMade{err}
	}
	limit := defaultTime
	if r.Timeout != nil {
		limit = *r.Timeout
	}
	box, err := r.boxes.Create(ctx, sandboxes.Spec{Image: cmp.Or(r.Image, executor.DefaultImage),
		Shape: r.Shape(base), Substrate: r.Substrate, Network: r.network, TTL: limit + spareTime}, r.tell)
	if err != nil {
		return 0, &notMade{err}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
		defer cancel()
		if err := r.boxes.Remove(ctx, box.ID); err != nil {
			r.tell("sandbox " + string(box.ID) + " is not removed, and stops later: " + err.Error())
		}
	}()
	cwd := tarfiles.Below(box.Workdir, r.Cwd)
	if r.Cwd != "" {
		r.command.Cwd = cwd
	}
	timed, cancel := context.WithTimeoutCause(ctx, limit, errTimeUp)
	defer cancel()
	for _, t := range adds {
		if err := r.boxes.CopyIn(timed, box.ID, sandboxes.Copy{From: t.Path,
			To: tarfiles.Into(cwd, t.Dest, t.Path)}); err != nil {
			return 0, r.late(timed, err)
		}
	}
	exit, err := r.boxes.Exec(timed, box.ID, r.command)
	if err != nil {
		return 0, r.late(timed, err)
	}
	for _, t := range gets {
		if err := r.boxes.CopyOut(ctx, box.ID, sandboxes.Copy{From: tarfiles.Below(cwd, t.Path),
			To: cmp.Or(t.Dest, "."), Skipped: r.tell}); err != nil {
			return int(exit.ExitCode), err
		}
	}
	return int(exit.ExitCode), nil
}

// late returns err, or that the command's time is up.
func (r *remoteExec) late(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errTimeUp) {
		return turnstone.Errorf("sandbox.exec", turnstone.KindTimeout, r.command.Argv[0],
			"killed after %s", cmp.Or(value(r.Timeout), defaultTime))
	}
	return err
}

func value(d *time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return *d
}

// notMade is an error from before there was a sandbox.
type notMade struct{ error }

func (e *notMade) Unwrap() error { return e.error }

// onHost is Run on the selected host.
func (c *ExecCmd) onHost(a *cli.App, boxes cli.Sandboxes, argv []string,
	rules *turnstone.NetworkSpec, stdin io.Reader) error {
	for _, t := range c.Add {
		if _, err := os.Stat(t.Path); err != nil {
			return cli.Exit(cli.ExitUsage, turnstone.NewError("executor.plan", turnstone.KindInvalid,
				"--add", err))
		}
	}
	p := a.Progress(c.Quiet, 0)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitExec)
	defer stop()
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	r := &remoteExec{ExecCmd: c, boxes: boxes, network: rules, tell: p.Preparing,
		command: sandboxes.Command{Argv: argv, Env: c.Environ(), Stdin: stdin,
			Stdout: terminal.NewSink(a.Stdout, p, broken), Stderr: terminal.NewSink(a.Stderr, p, broken)}}
	captured := cli.NewCapturedCommand(argv)
	if c.JSON {
		r.command.Stdout, r.command.Stderr = &captured.Stdout, &captured.Stderr
	}
	code, err := r.run(ctx)
	p.Close()
	verdict := hostVerdict(ctx, argv[0], code, err)
	if c.JSON {
		return captured.Deliver(a, code, err, verdict)
	}
	return verdict
}

// hostVerdict returns the exit status of the outcome.
func hostVerdict(ctx context.Context, program string, code int, err error) error {
	var none *notMade
	if kind := turnstone.KindOf(err); errors.As(err, &none) && context.Cause(ctx) == nil &&
		(kind == turnstone.KindInvalid || kind == turnstone.KindNotFound) {
		return cli.Exit(cli.ExitUsage, none.error)
	}
	return sandboxVerdict(ctx, program, wire.ProcessExit{ExitCode: int64(code)}, err)
}
