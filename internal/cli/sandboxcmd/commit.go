package sandboxcmd

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type sandboxCommitCmd struct {
	Sandbox string `arg:"" name:"sandbox" help:"ID, ID prefix or name."`
	JSON    bool   `name:"json" help:"Print the turn as JSON."`
	Quiet   bool   `short:"q" help:"Print the turn's ID only."`
}

// Help returns the text below the command's summary.
func (c *sandboxCommitCmd) Help() string {
	return `The turn's document has a step for each command that was run in the sandbox since it
began, or since its last turn. The sandbox is paused for a moment, and then continues;
its next turn follows the new one. If another turn was faster, the new turn begins a
branch. Nothing is printed if nothing was done.

Exit status: 0 the turn is kept, or nothing was done; 2 the command line is invalid, or
the sandbox belongs to no session; 3 the turn could not be kept, and the sandbox
continues.`
}

// Examples returns command lines for the help.
func (c *sandboxCommitCmd) Examples() []string {
	return []string{"turn sandbox commit box"}
}

// A CommittedReport is the output of turn sandbox commit.
type CommittedReport struct {
	Turn *turnstone.TurnReport `json:"turn"` // without its receipt; null: nothing was done
}

// Run keeps the turn.
func (c *sandboxCommitCmd) Run(a *cli.App) error {
	return a.WithSandboxes(func(ctx context.Context, s cli.Sandboxes) error {
		t, err := turnsOf(s)
		if err != nil {
			return err
		}
		i, err := s.Find(ctx, c.Sandbox)
		if err != nil {
			return err
		}
		rep, err := t.Commit(ctx, i.ID)
		if err != nil {
			return err
		}
		if rep == nil {
			if !c.Quiet {
				terminal.Printf(a.Stderr, "sandbox %s: nothing was done\n", i.Title())
			}
			return a.Result(CommittedReport{rep}, nil, func(io.Writer) {})
		}
		if !c.Quiet {
			terminal.Printf(a.Stderr, "turn %d of session %s, branch %s\n", rep.Number,
				rep.Session, rep.Branch)
		}
		return a.Result(CommittedReport{rep}, nil, func(w io.Writer) { terminal.Println(w, rep.ID) })
	})
}

// turnsOf returns s as sandboxes of sessions.
func turnsOf(s cli.Sandboxes) (cli.SandboxTurns, error) {
	t, ok := s.(cli.SandboxTurns)
	if !ok {
		return nil, turnstone.Errorf("sandbox.commit", turnstone.KindUnavailable, "host",
			"its sandboxes cannot be kept as turns by this command").
			WithHint("remove the sandbox: its work becomes a turn then")
	}
	return t, nil
}

// discarding are sandboxes that are removed without a turn.
type discarding struct {
	cli.SandboxRecords
	turns cli.SandboxTurns
}

// Remove implements cli.SandboxRecords.
func (d discarding) Remove(ctx context.Context, id turnstone.SandboxID) error {
	if err := d.turns.Discard(ctx, id); err != nil {
		return err
	}
	return d.SandboxRecords.Remove(ctx, id)
}
