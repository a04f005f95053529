package main

import (
	"context"
	"errors"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
)

type resumeCmd struct {
	Ref string `arg:"" help:"Interrupted turn, or turn with a saved machine."`

	Output     string   `short:"o" help:"Write the receipt of the turn into FILE." placeholder:"FILE" type:"path"`
	Secret     []string `help:"Give a secret of the turn again (repeatable)." placeholder:"NAME[=VALUE]" sep:"none"`
	Commands   bool     `help:"List the commands of each step in the receipt."`
	NoEvidence bool     `help:"Print the receipt without its signatures."`

	Name string         `help:"Name the sandbox of the saved machine." placeholder:"NAME"`
	TTL  *time.Duration `name:"ttl" help:"Stop the sandbox after this time; 0: never (default: 1h)." placeholder:"TIME"`

	Grant []string `help:"Grant the turn's request for KEY: network." placeholder:"KEY" sep:","`
	flags.ForNetwork

	Quiet bool `short:"q" help:"Print no progress."`
	JSON  bool `name:"json" help:"Print the turn or the sandbox as JSON."`
}

// Help returns the text below the command's summary.
func (c *resumeCmd) Help() string {
	return `An interrupted turn with checkpoint: step continues after its last finished step, in
a new sandbox on the state of that step, and ends like turn run: the receipt goes to
standard output. Processes of the finished steps are gone. Secrets and secret headers
have to be given again. Of several attempts at one time, one succeeds.

A turn with a saved machine (snapshot: vm) is not continued: its machine resumes with
its processes in a new sandbox, whose ID is printed. turn sandbox exec, attach, cp and
rm work with it. The sandbox has its own clock, random numbers, names and network
stack.

The network follows the rules of a run of the same document today: requests beyond
the host's default require --network on, --allow or --grant network. The turn may be
imported; its record grants nothing. An interrupted turn keeps the network and the
rules that it began with: others are refused.

Exit status: that of turn run.`
}

// Examples returns command lines for the help.
func (c *resumeCmd) Examples() []string {
	return []string{
		"turn resume research@4 -o receipt.md",
		"turn resume research@3 --name box",
	}
}

// Validate is called by kong.
func (c *resumeCmd) Validate() error {
	if c.TTL != nil && *c.TTL < 0 {
		return errors.New("--ttl must not be negative")
	}
	return c.ValidateWithoutTurn()
}

// Run continues the turn, or starts its machine.
func (c *resumeCmd) Run(a *cli.App) error {
	x, err := a.Open(context.Background())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	given := c.Ref
	if err := a.Expand(ctx, x, &c.Ref); err != nil {
		return cli.Fail(err)
	}
	info, err := x.Show(ctx, c.Ref)
	if err != nil {
		return cli.Fail(err)
	}
	c.Ref = string(info.Turn.ID)
	if info.Record == nil {
		return c.turn(a, x, info, given)
	}
	for flag, set := range map[string]bool{"-o": c.Output != "", "--secret": len(c.Secret) > 0,
		"--commands": c.Commands, "--no-evidence": c.NoEvidence,
		"--secret-header": len(c.SecretHeader) > 0} {
		if set {
			return cli.Usage(turnstone.Errorf("resume", turnstone.KindInvalid, flag,
				"is for interrupted turns, and turn %d has ended", info.Turn.Number).
				WithHint("leave out " + flag + " to start its saved machine"))
		}
	}
	return c.machine(a, given)
}

// turn continues an interrupted turn.
func (c *resumeCmd) turn(a *cli.App, x cli.Executor, info *turnstone.TurnInfo, given string) error {
	if c.Name != "" || c.TTL != nil {
		return cli.Usage(turnstone.Errorf("resume", turnstone.KindInvalid, "--name and --ttl",
			"are for saved machines, and turn %d was interrupted", info.Turn.Number).
			WithHint("leave them out to continue the turn"))
	}
	req := executor.ResumeTurnRequest{Ref: c.Ref, Grant: c.Grant, Commands: c.Commands,
		Network: c.On(), NetworkRules: c.Rules()}
	var err error
	if req.Secrets, err = flags.ReadSecrets(c.Secret); err == nil {
		req.SecretHeaders, err = c.SecretHeaders()
	}
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	a.Command = "run" // the output is that of run
	show := &runCmd{File: c.Ref, Output: c.Output, JSON: c.JSON, Quiet: c.Quiet,
		NoEvidence: c.NoEvidence}
	out, err := show.output(nil)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	p := a.Progress(c.Quiet, 0)
	p.Hide(req.Secrets)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
	turn, err := x.ResumeTurn(ctx, req, p)
	p.Close()
	stop()
	if turn == nil {
		return cli.Fail(err)
	}
	if err := show.deliver(a, turn, out); err != nil {
		return cli.Exit(cli.ExitAborted, undelivered(x, turn, err))
	}
	x.NoteUse(context.Background(), given)
	show.summary(a, turn)
	return verdict(turn, err)
}

// machine starts the saved machine of a turn.
func (c *resumeCmd) machine(a *cli.App, given string) error {
	ttl := time.Hour
	if c.TTL != nil {
		ttl = *c.TTL
	}
	return a.WithLocal("turn.resume", func(ctx context.Context, x *executor.Executor) error {
		p := a.Progress(c.Quiet, 0)
		info, err := x.Resume(ctx, executor.ResumeRequest{Ref: c.Ref, Name: c.Name, TTL: ttl,
			Grant: c.Grant, Network: c.On(), NetworkRules: c.Rules()}, p.Preparing)
		p.Close()
		if err != nil {
			return err
		}
		x.NoteUse(ctx, given)
		if !c.Quiet {
			terminal.Printf(a.Stderr, "sandbox %s: %s, %s\n",
				info.Title(), info.State, info.Isolation)
		}
		return a.Result(info, nil, func(w io.Writer) { terminal.Println(w, info.ID) })
	})
}
