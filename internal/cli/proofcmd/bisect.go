package proofcmd

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
)

// BisectCmd is turn bisect.
type BisectCmd struct {
	Ref string   `arg:"" name:"turns" help:"FROM..TO, or one turn: SESSION@3..10, SESSION@7."`
	Cmd []string `arg:"" optional:"" passthrough:"partial" name:"cmd" help:"Command that tests a state, after --."`

	Secret    []string       `help:"Set a secret of the turn again (repeatable)." placeholder:"NAME[=VALUE]" sep:"none"`
	Grant     []string       `help:"Grant the turn's request for KEY again (repeatable)." placeholder:"KEY" sep:","`
	Env       []flags.EnvVar `help:"Set a variable of the command (repeatable)." placeholder:"K=V" sep:"none"`
	Timeout   *time.Duration `help:"Limit each run of the command (default: 1h)." placeholder:"TIME"`
	Substrate string         `help:"Select the substrate (default: that of the turn)." enum:",auto,firecracker,qemu,gvisor" default:"" placeholder:"NAME"`
	Tier      string         `help:"Run deterministically (default: as the turn)." enum:",seeded,strict" default:"" placeholder:"seeded|strict"`
	JSON      bool           `name:"json" help:"Print the result as JSON."`
	Quiet     bool           `short:"q" help:"Print no progress."`
}

// Help is shown below the flags' summary.
func (c *BisectCmd) Help() string {
	return `With FROM..TO and a command, turn bisect finds the first turn on whose state the command
fails. FROM must be good and TO bad; each sandbox halves the range. The exit status of
the command is as for git bisect run: 0 good; 125 the turn cannot be tested; 1 to 127
bad; others end the search. The template of the turns must have the command's program.

With FROM..TO alone, it finds the first turn whose replay differs. Each turn is replayed
on its recorded parent, in order.

With one turn, it finds the first command whose output or effect differs between two
runs of the document, which is cut after commands at the top level of its steps. The
runs are deterministic if the turn was, or if a tier is available. If the turn was not,
the two runs have different seeds and clocks.

Exit status: 0 found; 1 nothing differs; 2 there is no such turn, FROM is bad, or an end
of the range cannot be tested; 3 the search could not be finished.`
}

// Examples returns command lines for the help.
func (c *BisectCmd) Examples() []string {
	return []string{
		"turn bisect research@3..10 -- make test",
		"turn bisect research@3..10",
		"turn bisect research@7",
	}
}

// Validate is called by kong.
func (c *BisectCmd) Validate() error {
	if len(c.Cmd) > 0 && c.Cmd[0] == "--" {
		c.Cmd = c.Cmd[1:]
	}
	if len(c.Cmd) > 0 && (len(c.Secret) > 0 || len(c.Grant) > 0 || c.Tier != "") {
		return errors.New("--secret, --grant and --tier are for replays, not for a command")
	}
	if len(c.Cmd) == 0 && (len(c.Env) > 0 || c.Timeout != nil) {
		return errors.New("--env and --timeout are for a command")
	}
	return nil
}

// Run searches.
func (c *BisectCmd) Run(a *cli.App) error {
	secrets, err := flags.ReadSecrets(c.Secret)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	x, err := a.Open(context.Background())
	if err != nil {
		return err
	}
	defer func() { _ = x.Close() }()
	p := a.Progress(c.Quiet, 0)
	p.Hide(secrets)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
	defer stop()
	req := executor.BisectRequest{Ref: c.Ref,
		Options: executor.ReplayOptions{Secrets: secrets, Substrate: c.Substrate, Grant: c.Grant,
			Tier: turnstone.Tier(c.Tier)},
		Command: executor.CommandRequest{Argv: c.Cmd, HostNetwork: true, Substrate: c.Substrate},
		Tell:    func(line string) { p.Say("%s", line) }}
	for _, e := range c.Env {
		req.Command.Env = append(req.Command.Env, string(e))
	}
	if c.Timeout != nil {
		req.Command.Timeout = *c.Timeout
	}
	var rep *turnstone.BisectReport
	if err = ExpandRange(ctx, a, x, &req.Ref); err == nil {
		rep, err = x.Bisect(ctx, req, p)
	}
	p.Close()
	if err != nil {
		return cli.Fail(err)
	}
	err = a.Result(rep, nil, func(w io.Writer) {
		_, _ = io.WriteString(w, terminal.Text(a.Stdout, bisectText(rep))) // w keeps its error
	})
	switch {
	case err != nil || rep.Found:
		return err
	case len(rep.Candidates) > 0 || rep.Replay != nil:
		return cli.Exit(cli.ExitAborted, nil)
	}
	return cli.Exit(cli.ExitFailed, nil)
}

// bisectText formats the result for people.
func bisectText(rep *turnstone.BisectReport) string {
	var b strings.Builder
	switch {
	case rep.Command != nil:
		commandText(&b, rep)
	case rep.Found:
		t := rep.Turn
		if r := rep.Replay; r != nil {
			terminal.Printf(&b, "turn %d (%s) is the first turn whose replay differs: %s\n", t.Number,
				t.ID, t.Title)
			PrintDifferences(&b, r)
			break
		}
		terminal.Printf(&b, "turn %d (%s) is the first bad turn: %s\n", t.Number, t.ID, t.Title)
		for _, f := range t.Files {
			terminal.Printf(&b, "  %s %s\n", f.Status, terminal.Name(f.Path))
		}
		if t.More > 0 {
			terminal.Printf(&b, "  and %d more files\n", t.More)
		}
		badOutput(&b, rep)
	case len(rep.Candidates) > 0:
		terminal.Println(&b, "the first bad turn is one of:", rep.Candidates)
	default:
		terminal.Println(&b, "nothing was found")
	}
	if rep.Note != "" {
		terminal.Println(&b, rep.Note)
	}
	return b.String()
}

// badOutput prints what the command printed on the first bad turn.
func badOutput(b *strings.Builder, rep *turnstone.BisectReport) {
	for _, t := range rep.Tests {
		if t.Number != rep.Turn.Number || t.ExitCode == nil {
			continue
		}
		terminal.Printf(b, "the command exited %d there\n", *t.ExitCode)
		for line := range strings.Lines(t.Output) {
			terminal.Println(b, "  "+strings.TrimRight(line, "\r\n"))
		}
	}
}

// commandText prints the first command that differs.
func commandText(b *strings.Builder, rep *turnstone.BisectReport) {
	c := rep.Command
	how := "not deterministic"
	if c.Tier != "" {
		how = string(c.Tier)
	}
	terminal.Printf(b, "turn %d: line %d (step %s) is the first command that differs: %s\n",
		rep.Turn.Number, c.Line, c.Step, c.Text)
	terminal.Printf(b, "  command %d of %d; %d runs, %s\n", c.Index, c.Of, c.Runs, how)
	for _, s := range c.Steps {
		terminal.Printf(b, "  %s: %s\n", s.Name, strings.Join(s.What, "; "))
	}
	for _, o := range []struct{ sign, text string }{{"-", c.Old}, {"+", c.New}} {
		for line := range strings.Lines(o.text) {
			terminal.Println(b, "  "+o.sign+strings.TrimRight(line, "\r\n"))
		}
	}
	printState(b, c.Changes, 0, c.Env, c.Cwd)
}
