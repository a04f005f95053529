package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

type sandboxAttachCmd struct {
	Sandbox string `arg:"" help:"ID, ID prefix or name."`
	Process string `arg:"" help:"Process name that exec -d printed."`
}

// Help is shown below the flags' summary.
func (c *sandboxAttachCmd) Help() string {
	return `Shows the process's output from the beginning, as far as the sandbox kept it, and then
its further output until its end. Ctrl-C leaves the process running.

Exit status: that of the process, 128+N if signal N ended it; 125 if turn or the
sandbox failed; 2 if the command line is invalid; 130 after Ctrl-C.`
}

// Run shows a process's output.
func (c *sandboxAttachCmd) Run(a *cli.App) error {
	h, err := a.StateDir()
	if err != nil {
		return cli.Exit(cli.ExitExec, err)
	}
	s := a.Sandboxes(h)
	ctx, stop := cli.Interruptible(func(string) { terminal.Println(a.Stderr, "turn: the process continues") }, cli.ExitExec)
	defer stop()
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	i, err := s.Find(ctx, c.Sandbox)
	if err != nil {
		return sandboxVerdict(ctx, "", wire.ProcessExit{}, err)
	}
	stdout, stderr := terminal.NewSink(a.Stdout, nil, broken), terminal.NewSink(a.Stderr, nil, broken)
	exit, err := s.Attach(ctx, i.ID, c.Process, stdout, stderr, func(stream wire.ProcessStream, n int64) {
		terminal.Printf(a.Stderr, "turn: %d bytes of %s are no longer kept\n", n, stream)
	})
	var fault *turnstone.Error
	var sig cli.Interruption
	switch {
	case errors.As(context.Cause(ctx), &sig):
		return cli.Exit(128+int(sig.Signal), nil)
	case errors.Is(context.Cause(ctx), syscall.EPIPE):
		return cli.Exit(128+int(syscall.SIGPIPE), nil)
	case errors.As(err, &fault) && fault.Op == wire.MethodProcessAttach && fault.Kind == turnstone.KindNotFound:
		fault.Hint = "turn sandbox ps " + c.Sandbox + " lists the processes; of those that have ended only the latest are kept"
		return cli.Exit(cli.ExitUsage, err)
	}
	return sandboxVerdict(ctx, "", exit, err)
}

type sandboxPsCmd struct {
	Sandbox string `arg:"" help:"ID, ID prefix or name."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// Run lists the processes that were started in the sandbox.
func (c *sandboxPsCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s *sandboxes.Store) error {
		i, err := s.Find(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		all, err := s.Processes(ctx, i.ID)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.WriteJSON(newProcessesReport(all))
		}
		w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
		terminal.Printf(w, "PROCESS\tPID\tSTATE\tAGE\tOUTPUT\tCOMMAND\n")
		for _, p := range all {
			// All of this data comes from the sandbox.
			terminal.Printf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", terminal.Printable(p.ProcessID), p.PID, processState(p), processAge(p),
				turnstone.Bytes(max(0, p.StdoutEnd)+max(0, p.StderrEnd)).Human(), terminal.Shorten(terminal.Printable(strings.Join(p.Argv, " ")), 60))
		}
		return w.Flush()
	})
}

func processState(p wire.ProcessProcessInfo) string {
	if p.Exit == nil {
		return "running"
	}
	return fmt.Sprintf("exit %d", p.Exit.ExitCode)
}

func processAge(p wire.ProcessProcessInfo) string {
	t, err := time.Parse(time.RFC3339Nano, p.Started)
	if err != nil {
		return "-"
	}
	return terminal.Rough(time.Since(t))
}
