package sandboxcmd

import (
	"context"
	"errors"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/wire"
)

type sandboxAttachCmd struct {
	Sandbox string `arg:"" help:"ID, ID prefix or name."`
	Process string `arg:"" help:"Process name that exec -d printed."`
}

// Help returns the text below the command's summary.
func (c *sandboxAttachCmd) Help() string {
	return `Shows the process's output from the beginning, as far as the sandbox kept it, and then
its further output until its end. Ctrl-C leaves the process running.

Exit status: that of the process, 128+N if signal N ended it; 125 if turn or the
sandbox failed, or it does not know the process; 2 if the command line is invalid;
130 after Ctrl-C.`
}

// Examples returns command lines for the help.
func (c *sandboxAttachCmd) Examples() []string {
	return []string{
		"turn sandbox attach box p5g53psfgafjr",
	}
}

// Run shows a process's output.
func (c *sandboxAttachCmd) Run(a *cli.App) error {
	s, err := a.OpenSandboxes(context.Background())
	if err != nil {
		return cli.Exit(cli.ExitExec, err)
	}
	tell := func(string) { terminal.Println(a.Stderr, "turn: the process continues") }
	ctx, stop := cli.Interruptible(tell, cli.ExitExec)
	defer stop()
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	id, err := s.Resolve(ctx, c.Sandbox)
	if err != nil {
		return sandboxVerdict(ctx, "", wire.ProcessExit{}, err)
	}
	lost := func(stream wire.ProcessStream, n int64) {
		terminal.Printf(a.Stderr, "turn: %d bytes of %s are no longer kept\n", n, stream)
	}
	exit, err := s.Attach(ctx, id, c.Process, terminal.NewSink(a.Stdout, nil, broken),
		terminal.NewSink(a.Stderr, nil, broken), lost)
	var fault *turnstone.Error
	var sig cli.Interruption
	switch {
	case errors.As(context.Cause(ctx), &sig):
		return cli.Exit(128+int(sig.Signal), nil)
	case errors.Is(context.Cause(ctx), syscall.EPIPE):
		return cli.Exit(128+int(syscall.SIGPIPE), nil)
	case errors.As(err, &fault) && fault.Op == wire.MethodProcessAttach &&
		fault.Kind == turnstone.KindNotFound:
		fault.Hint = "list the processes with turn sandbox ps " + c.Sandbox +
			"; of ended processes only the latest are listed"
	}
	return sandboxVerdict(ctx, "", exit, err)
}
