package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

type sandboxExecCmd struct {
	Terminal bool           `short:"t" help:"Give the command a terminal."`
	Detach   bool           `short:"d" help:"Print the process name and return at once."`
	Env      []flags.EnvVar `help:"Set an environment variable (repeatable)." placeholder:"K=V" sep:"none"`
	Secret   []string       `help:"Set a secret variable (repeatable)." placeholder:"NAME[=VALUE]" sep:"none"`
	Cwd      string         `help:"Run in this directory (default: the template's)." placeholder:"DIR"`
	User     string         `help:"Run as USER[:GROUP] (default: the template's, or root)." placeholder:"USER"`
	Timeout  *time.Duration `help:"Kill the command after this time, such as 90s or 10m." placeholder:"TIME"`
	JSON     bool           `name:"json" help:"Print the exit status and outputs as JSON."`

	Sandbox string   `arg:"" help:"ID, ID prefix or name."`
	Cmd     []string `arg:"" passthrough:"partial" name:"cmd" help:"Command and its arguments, after --."`
}

// Help returns the text below the command's summary.
func (c *sandboxExecCmd) Help() string {
	return `The command reads standard input unless that is a terminal; with -t it reads the keys
of the terminal. Its output is unchanged, except that without -t a terminal gets no
control sequences other than colors. Ctrl-C goes to the command; a second Ctrl-C
kills it. The command is also killed with turn, except with -d.

Exit status: that of the command, 128+N if signal N ended it; 124 after --timeout;
127 if there is no such command, 126 if it cannot be started; 125 if turn or the
sandbox failed, or there is no such sandbox; 2 if the command line is invalid.`
}

// Examples returns command lines for the help.
func (c *sandboxExecCmd) Examples() []string {
	return []string{
		"turn sandbox exec box -- ls -l",
		"turn sandbox exec -t box -- bash",
		"turn sandbox exec -d box -- python -m http.server 8000",
	}
}

// Validate is called by kong.
func (c *sandboxExecCmd) Validate() error {
	switch {
	case c.Timeout != nil && *c.Timeout <= 0:
		return fmt.Errorf("--timeout: %s is not a positive time", *c.Timeout)
	case c.JSON && (c.Terminal || c.Detach):
		return errors.New("--json cannot be used with -t or -d: " +
			"it prints the output when the command ends")
	case c.Timeout != nil && c.Detach:
		return errors.New("--timeout and -d cannot be used together: " +
			"turn ends before it could kill the command")
	}
	return nil
}

// Run runs the command.
func (c *sandboxExecCmd) Run(a *cli.App) error {
	argv, err := argvOf(c.Cmd, "turn sandbox exec SANDBOX -- CMD…")
	if err != nil {
		return err
	}
	s, err := a.OpenSandboxes(context.Background())
	if err != nil {
		return cli.Exit(cli.ExitExec, err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if c.Timeout != nil {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, *c.Timeout, errTimeUp)
		defer stop()
	}
	id, err := s.Resolve(ctx, c.Sandbox)
	if err != nil {
		return sandboxVerdict(ctx, argv[0], wire.ProcessExit{}, err)
	}
	env := (&flags.ForSandbox{Env: c.Env}).Environ()
	cmd := sandboxes.Command{Argv: argv, Cwd: c.Cwd, User: c.User, Env: env}
	if cmd.Secrets, err = flags.ReadSecrets(c.Secret); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	if c.Terminal {
		cmd.Terminal = terminalSize(a)
		isTerm := func(e string) bool { return strings.HasPrefix(e, "TERM=") }
		if t := os.Getenv("TERM"); t != "" && !slices.ContainsFunc(cmd.Env, isTerm) {
			cmd.Env = append(cmd.Env, "TERM="+t)
		}
	}
	if c.Detach {
		process, err := s.StartDetached(ctx, id, cmd)
		if err != nil {
			return sandboxVerdict(ctx, argv[0], wire.ProcessExit{}, err)
		}
		_, err = terminal.Println(a.Stdout, process)
		return err
	}
	var captured *cli.CapturedCommand
	if c.JSON {
		captured = cli.NewCapturedCommand(argv)
	}
	exit, err := c.attached(ctx, a, s, id, cmd, captured, cancel)
	if c.Timeout != nil && errors.Is(err, errTimeUp) {
		err = turnstone.Errorf("sandbox.exec", turnstone.KindTimeout, argv[0],
			"killed after %s", *c.Timeout)
	}
	verdict := sandboxVerdict(ctx, argv[0], exit, err)
	if c.JSON {
		return captured.Deliver(a, int(exit.ExitCode), err, verdict)
	}
	return verdict
}

// errTimeUp is the cause of a context that --timeout ends.
var errTimeUp = errors.New("the time is up")

// attached runs a command that uses this process's streams; its outputs go to captured, if that is
// not nil.
func (c *sandboxExecCmd) attached(
	ctx context.Context, a *cli.App, s cli.SandboxCommands, id turnstone.SandboxID,
	cmd sandboxes.Command, captured *cli.CapturedCommand, cancel context.CancelCauseFunc,
) (wire.ProcessExit, error) {
	cmd.Stdout = terminal.NewSink(a.Stdout, nil, cancel)
	cmd.Stderr = terminal.NewSink(a.Stderr, nil, cancel)
	if captured != nil {
		cmd.Stdout, cmd.Stderr = &captured.Stdout, &captured.Stderr
	}
	onTerminal := term.IsTerminal(int(a.Stdin.Fd()))
	if !onTerminal || c.Terminal {
		cmd.Stdin = a.Stdin
	}
	if c.Terminal {
		cmd.Stdout = terminal.NewRawSink(a.Stdout, cancel)
		cmd.Resized = resizes(a, ctx)
		if onTerminal {
			old, err := term.MakeRaw(int(a.Stdin.Fd()))
			if err != nil {
				return wire.ProcessExit{}, turnstone.NewError("sandbox.exec",
					turnstone.KindUnavailable, "terminal", err)
			}
			defer func() { _ = term.Restore(int(a.Stdin.Fd()), old) }()
		}
	}
	forward, stop := forwardSignals(cancel)
	defer stop()
	cmd.Signals = forward
	return s.Exec(ctx, id, cmd)
}

// forwardSignals forwards the first SIGINT, SIGTERM or SIGHUP to the command. The second signal
// kills the command, and the third exits immediately.
func forwardSignals(cancel context.CancelCauseFunc) (<-chan string, func()) {
	signals, forward, done := make(chan os.Signal, 4), make(chan string, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	names := map[os.Signal]string{
		syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP"}
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-signals:
				sig, _ := s.(syscall.Signal)
				switch n {
				case 0:
					forward <- names[s]
				case 1:
					cancel(cli.Interruption{Signal: sig})
				default:
					os.Exit(128 + int(sig))
				}
			}
		}
	}()
	return forward, func() {
		signal.Stop(signals)
		close(done)
	}
}

// terminalSize returns the size of turn's terminal, or 80 times 24.
func terminalSize(a *cli.App) *wire.ProcessTerminal {
	for _, f := range []*os.File{a.Stdout, a.Stdin, a.Stderr} {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return &wire.ProcessTerminal{Columns: int64(w), Rows: int64(h)}
		}
	}
	return &wire.ProcessTerminal{Columns: 80, Rows: 24}
}

// resizes returns each new size of the terminal, until ctx ends.
func resizes(a *cli.App, ctx context.Context) <-chan wire.ProcessTerminal {
	changed, sizes := make(chan os.Signal, 1), make(chan wire.ProcessTerminal)
	notifyResize(changed)
	go func() {
		defer signal.Stop(changed)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			select {
			case <-ctx.Done():
				return
			case sizes <- *terminalSize(a):
			}
		}
	}()
	return sizes
}

// sandboxVerdict returns the exit status of a command's end.
func sandboxVerdict(ctx context.Context, program string, exit wire.ProcessExit, err error) error {
	return verdict(ctx, int(exit.ExitCode), err, func(fault *turnstone.Error) int {
		missing := fault.Kind == turnstone.KindNotFound
		switch {
		case fault.Op == "sandbox.exec" && fault.Kind == turnstone.KindTimeout:
			return cli.ExitTimeout
		case fault.Op == wire.MethodProcessStart && missing && fault.Subject == program:
			return cli.ExitNotFound
		case fault.Op == wire.MethodProcessStart && (missing || fault.Kind == turnstone.KindInvalid):
			return cli.ExitNoExec
		}
		return cli.ExitExec
	})
}
