package sandboxcmd

import (
	"context"
	"errors"
	"io"
	"syscall"

	"golang.org/x/term"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/wire"
)

// An ExecCmd is turn exec.
type ExecCmd struct {
	flags.ForSandbox
	Cwd   string `help:"Run in this directory (default: the template's)." placeholder:"DIR"`
	Quiet bool   `short:"q" help:"Print no progress."`
	JSON  bool   `name:"json" help:"Print the exit status and outputs as JSON."`

	Cmd []string `arg:"" passthrough:"partial" name:"cmd" help:"Command and its arguments, after --."`
}

// Help returns the text below the command's summary.
func (c *ExecCmd) Help() string {
	return `The command reads standard input unless that is a terminal. Its output is unchanged,
except that a terminal gets no control sequences other than colors.

The network modes record and replay are for turns. SIZE is a number with a unit, such
as 512MiB or 2GiB. Substrates are auto, firecracker, qemu and gvisor.

Exit status: that of the command, 128+N if signal N ended it; 124 after --timeout;
127 if there is no such command, 126 if it cannot be started; 125 if turn failed;
2 if the command line is invalid.`
}

// Examples returns command lines for the help.
func (c *ExecCmd) Examples() []string {
	return []string{
		"turn exec -- uname -a",
		"turn exec --image python:3.12 -- python -c \"print(1 + 1)\"",
		"turn exec --add data.csv -- sort data.csv > sorted.csv",
	}
}

// Validate is called by kong.
func (c *ExecCmd) Validate() error {
	if err := c.ValidateWithoutTurn(); err != nil {
		return err
	}
	return c.ForSandbox.Validate() // kong calls only the outermost
}

// argvOf returns the command to run, without the "--" before it. Without a command the error says
// what to write.
func argvOf(cmd []string, write string) ([]string, error) {
	if len(cmd) > 0 && cmd[0] == "--" {
		cmd = cmd[1:]
	}
	if len(cmd) == 0 {
		return nil, cli.Exit(cli.ExitUsage, turnstone.Errorf("usage", turnstone.KindInvalid, "",
			"no command to run").WithHint("write "+write))
	}
	return cmd, nil
}

// Run runs the command.
func (c *ExecCmd) Run(a *cli.App) error {
	argv, err := argvOf(c.Cmd, "turn exec -- CMD…")
	if err != nil {
		return err
	}
	rules, err := c.ForNetwork.Spec()
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	var stdin io.Reader
	if !term.IsTerminal(int(a.Stdin.Fd())) {
		stdin = a.Stdin
	}
	server, err := a.Server(context.Background())
	if err != nil {
		return cli.Exit(cli.ExitExec, err)
	}
	if server != nil {
		return c.onHost(a, server.AllSandboxes(), argv, rules, stdin)
	}
	x, err := a.OpenLocal(context.Background())
	if err != nil {
		return cli.Exit(cli.ExitExec, err)
	}
	p := a.Progress(c.Quiet, 0)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitExec)
	defer stop()
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	req := executor.CommandRequest{
		Argv: argv, Image: c.Image, Env: c.Environ(), Cwd: c.Cwd,
		Add: flags.Transfers(c.Add), Get: flags.Transfers(c.Get),
		Shape: c.Shape(x.Shape(c.Image)), Substrate: c.Substrate,
		Network: rules, HostNetwork: c.ForNetwork.On() == nil, Stdin: stdin,
		Stdout: terminal.NewSink(a.Stdout, p, broken),
		Stderr: terminal.NewSink(a.Stderr, p, broken),
	}
	if c.Timeout != nil {
		req.Timeout = *c.Timeout
	}
	captured := cli.NewCapturedCommand(argv)
	if c.JSON {
		req.Stdout, req.Stderr = &captured.Stdout, &captured.Stderr
	}
	code, err := x.Exec(ctx, req, p.Preparing)
	p.Close()
	verdict := execVerdict(ctx, code, err)
	if c.JSON {
		return captured.Deliver(a, code, err, verdict)
	}
	return verdict
}

// execVerdict returns the exit status of the outcome.
func execVerdict(ctx context.Context, code int, err error) error {
	return verdict(ctx, code, err, func(fault *turnstone.Error) int {
		is := func(op turnstone.Op, kind turnstone.Kind) bool {
			return fault.Op == op && fault.Kind == kind
		}
		switch {
		case is("executor.exec", turnstone.KindTimeout):
			return cli.ExitTimeout
		case is(wire.MethodProcessStart, turnstone.KindNotFound):
			return cli.ExitNotFound
		case is(wire.MethodProcessStart, turnstone.KindInvalid):
			return cli.ExitNoExec
		case is("executor.network", turnstone.KindInvalid), fault.Op == "executor.plan",
			is("network.policy", turnstone.KindInvalid), is("network.rule", turnstone.KindInvalid),
			is("substrates.choose", turnstone.KindInvalid),
			is("template.find", turnstone.KindNotFound):
			return cli.ExitUsage
		}
		return cli.ExitExec
	})
}

// verdict returns the exit status of a command that exited with code, or of the error that ended
// it: statusOf returns that of an error with an operation.
func verdict(ctx context.Context, code int, err error, statusOf func(*turnstone.Error) int) error {
	cause, status := context.Cause(ctx), cli.ExitExec
	var sig cli.Interruption
	var fault *turnstone.Error
	if errors.As(err, &fault) {
		status = statusOf(fault)
	}
	switch {
	case errors.As(cause, &sig):
		return cli.Exit(128+int(sig.Signal), cause)
	case status != cli.ExitExec:
		return cli.Exit(status, err)
	case errors.Is(cause, syscall.EPIPE):
		// like a program that the signal ended: there is no reader
		return cli.Exit(128+int(syscall.SIGPIPE), nil)
	case cause != nil && err != nil:
		return cli.Exit(cli.ExitExec, cause)
	case err != nil:
		return cli.Exit(cli.ExitExec, err)
	case code != 0:
		return cli.Exit(code, nil)
	}
	return nil
}
