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
	return `With a command, the first turn of FROM..TO is found on whose state the command fails,
in a number of sandboxes that grows with the logarithm of the range. FROM must be
good and TO bad. As for git bisect run, status 0 means good, 125 that the turn cannot
be tested, 1 to 127 bad; others end the search.

Without a command, the first turn is found whose replay differs. Each turn is replayed
on its recorded parent, in order.

With one turn, the first command of it is found whose output or effect differs in two
runs of the document. The document is cut after commands at the top level of its
steps. The runs are deterministic if the turn was, or if a tier is available; those of
other turns get two seeds and two clocks.

Exit status: 0 found; 1 nothing differs; 2 there is no such turn, or an end of the
range is not as said; 3 the search could not be finished.`
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
		Tell:    func(line string) { p.Say("turn: %s", line) }}
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
		what := "the first bad turn"
		if rep.Replay != nil {
			what = "the first turn whose replay differs"
		}
		terminal.Printf(&b, "turn %d (%s) is %s: %s\n", t.Number, t.ID, what, t.Title)
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
	for _, f := range c.Changes[:min(len(c.Changes), maxRows)] {
		terminal.Printf(b, "  %s: %s\n", terminal.Name(f.Path), f.What)
	}
	if more := len(c.Changes) - maxRows; more > 0 {
		terminal.Printf(b, "  and %d more files\n", more)
	}
	if len(c.Env) > 0 {
		terminal.Printf(b, "  environment: %s\n", strings.Join(c.Env, ", "))
	}
	if c.Cwd {
		terminal.Println(b, "  the working directory")
	}
}
