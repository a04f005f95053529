package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/cli/proofcmd"
	"turnstone.dev/turnstone/internal/terminal"
)

type replayCmd struct {
	Ref string `arg:"" help:"Turn, or FROM..TO: SESSION@N, SESSION@N..M."`

	Secret []string `help:"Set a secret of the turn again (repeatable)." placeholder:"NAME[=VALUE]" sep:"none"`
	Grant  []string `help:"Grant the turn's request for KEY again (repeatable)." placeholder:"KEY" sep:","`
	// No default, and not TURN_SUBSTRATE: a replay repeats the same turn.
	Substrate string `help:"Select the substrate (default: that of the turn)." enum:",auto,firecracker,qemu,gvisor" default:"" placeholder:"NAME"`
	Tier      string `help:"Run deterministically (default: as the turn)." enum:",seeded,strict" default:"" placeholder:"seeded|strict"`
	OnHead    bool   `help:"Run on the branch's present head, on a new branch."`
	Branch    string `help:"Name the new branch (default: replay-N)." placeholder:"NAME"`
	JSON      bool   `name:"json" help:"Print the comparison and the new receipt as JSON."`
	Receipt   bool   `help:"Print the new receipt instead of the comparison."`
	Quiet     bool   `short:"q" help:"Print no progress."`
}

// Help returns the text below the command's summary.
func (c *replayCmd) Help() string {
	return `The turn runs again in a clean sandbox, on the state of its parent, with the same
files and environment. The results are compared with the record: exit codes,
outputs, files, environment, working directory. The new turn is in no session.

FROM..TO runs a range of turns again, along the first parents of TO: the first on the
state of its parent, each other on the new turn before it. --on-head runs turns on
the present head of the branch on which the first one began, as a rebase does: the
new turns are in the session, on a new branch, and only results are compared.

Grant local addresses and private registries again with --grant network and --grant
image. Traffic that is served from a recording requires no grant.

Exit status: 0 nothing differs; 1 something differs; 2 there is no such turn; 3 the
turn could not run.`
}

// Examples returns command lines for the help.
func (c *replayCmd) Examples() []string {
	return []string{
		"turn replay research@2",
		"turn replay research@2..8",
		"turn replay research@5..explore --on-head --branch rebased",
	}
}

// Validate is called by kong.
func (c *replayCmd) Validate() error {
	switch {
	case c.Branch != "" && !c.OnHead:
		return errors.New("--branch requires --on-head")
	case c.Receipt && c.several():
		return errors.New("--receipt prints the receipt of one turn")
	}
	return nil
}

// several reports whether the turns are those of a range, or get a branch.
func (c *replayCmd) several() bool { return c.OnHead || proofcmd.IsRange(c.Ref) }

// Run replays the turn.
func (c *replayCmd) Run(a *cli.App) error {
	secrets, err := flags.ReadSecrets(c.Secret)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	opt := executor.ReplayOptions{Secrets: secrets, Substrate: c.Substrate, Grant: c.Grant,
		Tier: turnstone.Tier(c.Tier)}
	if c.several() {
		r := proofcmd.ReplayRange{Quiet: c.Quiet, JSON: c.JSON, Text: replayText,
			Request: executor.RangeRequest{Ref: c.Ref, Options: opt, OnHead: c.OnHead,
				Branch: c.Branch}}
		return r.Run(a)
	}
	x, err := a.Open(context.Background())
	if err != nil {
		return err
	}
	p := a.Progress(c.Quiet, 0)
	p.Hide(secrets)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
	given := c.Ref
	var rep *turnstone.ReplayReport
	if err = a.Expand(ctx, x, &c.Ref); err == nil {
		rep, err = x.Replay(ctx, c.Ref, opt, p)
	}
	if rep != nil {
		x.NoteUse(ctx, given)
	}
	p.Close()
	stop()
	switch {
	case rep == nil:
		return cli.Fail(err)
	case err != nil:
		return cli.Exit(cli.ExitAborted, err)
	}
	err = a.Result(rep, nil, func(w io.Writer) {
		text := replayText(rep)
		if c.Receipt {
			text = rep.Turn.Receipt
		}
		_, _ = io.WriteString(w, terminal.Text(a.Stdout, text)) // w keeps its error
	})
	if err == nil && !rep.Same {
		err = cli.Exit(cli.ExitFailed, nil)
	}
	return err
}

// replayText formats the comparison for users.
func replayText(rep *turnstone.ReplayReport) string {
	var b strings.Builder
	if rep.HomeMissing {
		terminal.Printf(&b, "home %s: its files of then are not kept, and were not mounted\n", rep.Home)
	}
	if rep.Same {
		terminal.Printf(&b, "turn %d: the same again: ", rep.Number)
		terminal.Println(&b, "steps, outputs, files, environment")
		if rep.FSHash != "" {
			terminal.Printf(&b, "fs %s\n", rep.FSHash)
		}
		return b.String()
	}
	terminal.Printf(&b, "turn %d: differs\n", rep.Number)
	if rep.HomeDiffers {
		terminal.Printf(&b, "  the files in home %s differ\n", rep.Home)
	}
	if rep.Template != "" {
		terminal.Printf(&b, "  the template was rebuilt: %s\n", rep.Template)
	}
	proofcmd.PrintDifferences(&b, rep)
	if rep.FSHash != "" && rep.FSHash != rep.Turn.FSHash {
		terminal.Printf(&b, "fs before %s\nfs now    %s\n", rep.FSHash, rep.Turn.FSHash)
	}
	return b.String()
}
