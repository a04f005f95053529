package main

import (
	"context"
	"errors"
	"io"
	"time"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
)

type resumeCmd struct {
	Ref string `arg:"" help:"Turn with a saved machine (snapshot: vm)."`

	Name string        `help:"Name the sandbox." placeholder:"NAME"`
	TTL  time.Duration `name:"ttl" help:"Stop the sandbox after this time; 0: never (default: 1h)." placeholder:"TIME" default:"1h"`

	Grant    []string          `help:"Grant the turn's request for KEY: network." placeholder:"KEY" sep:","`
	Network  flags.NetworkMode `help:"Set the network mode (default: that of the turn)." placeholder:"on|off"`
	Allow    []flags.Rule      `help:"Allow only this host or network (repeatable)." placeholder:"RULE" sep:"none"`
	Deny     []flags.Rule      `help:"Deny this host or network (repeatable)." placeholder:"RULE" sep:"none"`
	NoHostCA bool              `name:"no-host-ca" help:"Do not trust the host's certificate authorities."`

	Quiet bool `short:"q" help:"Print no progress."`
	JSON  bool `name:"json" help:"Print the sandbox as JSON."`
}

// Help returns the text below the command's summary.
func (c *resumeCmd) Help() string {
	return `The machine continues with its processes in a new sandbox: turn sandbox exec, attach,
cp and rm work with it. The sandbox has its own clock, random numbers, names and
network stack. Its ID is printed.

Its network follows the rules of a run of the same document today: requests beyond
the host's default require --network on, --allow or --grant network. The turn may be
imported; its record grants nothing.`
}

// Examples returns command lines for the help.
func (c *resumeCmd) Examples() []string {
	return []string{
		"turn resume research@3 --name box",
	}
}

// network returns the network of the flags.
func (c *resumeCmd) network() *flags.ForNetwork {
	return &flags.ForNetwork{Network: c.Network, Allow: c.Allow, Deny: c.Deny, NoHostCA: c.NoHostCA}
}

// Validate is called by kong.
func (c *resumeCmd) Validate() error {
	return c.network().ValidateWithoutTurn()
}

// Run starts the machine.
func (c *resumeCmd) Run(a *cli.App) error {
	if c.TTL < 0 {
		return cli.Exit(cli.ExitUsage, errors.New("--ttl must not be negative"))
	}
	return a.WithLocal("turn.resume", func(ctx context.Context, x *executor.Executor) error {
		given := c.Ref
		if err := a.Expand(ctx, x, &c.Ref); err != nil {
			return err
		}
		p := a.Progress(c.Quiet, 0)
		info, err := x.Resume(ctx, executor.ResumeRequest{Ref: c.Ref, Name: c.Name, TTL: c.TTL,
			Grant:   c.Grant,
			Network: c.network().On(), NetworkRules: c.network().Rules()}, p.Preparing)
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
