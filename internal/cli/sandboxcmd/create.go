package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
)

type sandboxCreateCmd struct {
	Name    string          `help:"Name the sandbox; the name must be unique." placeholder:"NAME"`
	Image   string          `help:"Run in this template or image (default: base)." placeholder:"NAME"`
	Session string          `help:"Begin on this session; its work becomes a turn." placeholder:"NAME"`
	Branch  string          `help:"Begin on this branch of the session (default: main)." placeholder:"NAME"`
	Env     []flags.EnvVar  `help:"Set an environment variable (repeatable)." placeholder:"K=V" sep:"none"`
	Secret  []string        `help:"Set a secret variable (repeatable)." placeholder:"NAME[=VALUE]" sep:"none"`
	TTL     time.Duration   `name:"ttl" help:"Stop the sandbox after this time; 0: never (default: 1h)." placeholder:"TIME" default:"1h"`
	CPUs    *int            `name:"cpus" help:"Set the virtual CPUs (default: the template's, or 1)." placeholder:"N"`
	Memory  turnstone.Bytes `help:"Set the memory (default: the template's, or 1GiB)." placeholder:"SIZE"`
	Disk    turnstone.Bytes `help:"Limit disk writes (default: the template's, or 4GiB)." placeholder:"SIZE"`
	flags.ForNetwork
	Substrate string `help:"Select the substrate (default: auto)." enum:"auto,firecracker,qemu,gvisor" default:"auto" placeholder:"NAME" env:"TURN_SUBSTRATE"`
	Quiet     bool   `short:"q" help:"Print no progress."`
	JSON      bool   `name:"json" help:"Print the sandbox as JSON."`
}

// Help returns the text below the command's summary.
func (c *sandboxCreateCmd) Help() string {
	return `The sandbox exists until it is removed, its time is up, or the computer is restarted;
a separate process holds it. The ID goes to standard output as soon as the sandbox is
ready.

With --session the sandbox begins on the session's newest turn. What is done in it becomes
a turn when it is removed or stopped, when its time is up, or with turn sandbox commit:
each command is a step of the turn's document.

A sandbox with secrets is forked only with --with-secrets. The network modes record and
replay are for turns. SIZE is a number with a unit, such as 512MiB or 2GiB. Substrates are
auto, firecracker, qemu and gvisor.

Exit status: 0 the sandbox is ready; 2 the command line is invalid; 3 the sandbox
could not be created.`
}

// Examples returns command lines for the help.
func (c *sandboxCreateCmd) Examples() []string {
	return []string{
		"turn sandbox create",
		"turn sandbox create --name box --image python:3.12 --ttl 8h",
		"turn sandbox create --session research",
	}
}

// spec converts the flags to the library's spec, with a machine as base for values that they do not
// set.
func (c *sandboxCreateCmd) spec(base turnstone.Shape) sandboxes.Spec {
	f := flags.ForSandbox{CPUs: c.CPUs, Memory: c.Memory, Disk: c.Disk,
		ForNetwork: c.ForNetwork, Env: c.Env}
	image := c.Image
	if c.Session == "" {
		image = cmp.Or(image, executor.DefaultImage)
	}
	return sandboxes.Spec{Name: c.Name, Image: image, Session: c.Session, Branch: c.Branch, Env: f.Environ(), Shape: f.Shape(base),
		Substrate: c.Substrate, TTL: c.TTL}
}

// Validate is called by kong.
func (c *sandboxCreateCmd) Validate() error {
	if err := c.ValidateWithoutTurn(); err != nil {
		return err
	}
	return c.spec(turnstone.DefaultShape()).Check()
}

// Run creates the sandbox.
func (c *sandboxCreateCmd) Run(a *cli.App) error {
	s, err := a.OpenSandboxes(context.Background())
	if err != nil {
		return err
	}
	base, err := s.Shape(context.Background(), c.Image, c.On())
	if err != nil {
		return err
	}
	spec := c.spec(base)
	if spec.Secrets, err = flags.ReadSecrets(c.Secret); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	if spec.Network, err = c.ForNetwork.Spec(); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	p := a.Progress(c.Quiet, 0)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
	defer stop()
	began := time.Now()
	i, err := s.Create(ctx, spec, p.Preparing)
	p.Close()
	var sig cli.Interruption
	switch {
	case errors.As(context.Cause(ctx), &sig) && err != nil:
		return cli.Exit(cli.ExitAborted, sig)
	case err != nil:
		return cli.Fail(err)
	}
	if !c.Quiet {
		took := terminal.Elapsed(time.Since(began))
		terminal.Printf(a.Stderr, "sandbox %s: %s in %s, %s\n",
			i.Title(), i.State, took, i.Isolation)
	}
	return a.Result(i, nil, func(w io.Writer) { terminal.Println(w, i.ID) })
}

type sandboxHoldCmd struct {
	Home string `hidden:"" required:"" help:"Use this state directory."`
	ID   string `arg:"" help:"Sandbox."`
}

// reportsFD is the descriptor on which create's holder reports to create.
const reportsFD = 3

// Run keeps a sandbox until its end.
func (c *sandboxHoldCmd) Run(a *cli.App) error {
	a.Env.Dir = c.Home
	h, err := a.StateDir()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	slog.SetDefault(log)
	ctx, stop := cli.Interruptible(func(string) { log.Info("asked to stop") }, cli.ExitAborted)
	defer stop()
	reports := os.NewFile(reportsFD, "reports")
	if st, err := reports.Stat(); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return cli.Exit(cli.ExitUsage, turnstone.Errorf("usage", turnstone.KindInvalid, "",
			"only turn itself starts this command").WithHint("use turn sandbox create"))
	}
	err = a.Store(h).Hold(ctx, turnstone.SandboxID(c.ID), opener(a), a.Stdin, reports, log)
	if err != nil {
		return cli.Exit(cli.CodeOf(err), nil) // it is in the log
	}
	return nil
}

// opener creates machines with the executor.
func opener(a *cli.App) sandboxes.Opener {
	return func(
		ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec, progress func(string),
	) (sandboxes.Machine, sandboxes.Details, error) {
		x, err := a.OpenLocal(ctx)
		if err != nil {
			return nil, sandboxes.Details{}, err
		}
		return x.OpenMachine(ctx, id, spec, progress)
	}
}
