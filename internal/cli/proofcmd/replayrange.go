package proofcmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// A ReplayRange is turn replay of several turns, or on the present head.
type ReplayRange struct {
	Request     executor.RangeRequest
	Quiet, JSON bool
	Text        func(*turnstone.ReplayReport) string // the comparison of one turn
}

// Run runs the turns again. Each comparison is printed as its turn ends.
func (c *ReplayRange) Run(a *cli.App) error {
	x, err := a.Open(context.Background())
	if err != nil {
		return err
	}
	defer func() { _ = x.Close() }()
	p := a.Progress(c.Quiet, 0)
	p.Hide(c.Request.Options.Secrets)
	ctx, stop := cli.Interruptible(func(s string) { p.Say("turn: %s", s) }, cli.ExitAborted)
	defer stop()
	given := c.Request.Ref
	if err := ExpandRange(ctx, a, x, &c.Request.Ref); err != nil {
		p.Close()
		return cli.Fail(err)
	}
	var broken error
	c.Request.Each = func(rep *turnstone.ReplayReport) {
		if !c.JSON && broken == nil {
			text := c.Text(rep)
			if c.Request.OnHead && rep.Same {
				text = fmt.Sprintf("turn %d: the same results, as turn %d\n", rep.Number,
					rep.Turn.Number)
			}
			p.Settle()
			_, broken = io.WriteString(a.Stdout, terminal.Text(a.Stdout, text))
		}
	}
	rep, err := x.ReplayRange(ctx, c.Request, p)
	p.Close()
	switch {
	case rep == nil:
		return cli.Fail(err)
	case err == nil:
		err = broken
	}
	from, _, _ := turnstone.CutRange(given)
	x.NoteUse(ctx, from)
	a.Command = "replay range"
	if err := a.Partial(rep, err); err != nil {
		return cli.Exit(cli.ExitAborted, err)
	}
	if !c.JSON {
		if _, err := io.WriteString(a.Stdout, rangeText(rep)); err != nil {
			return err
		}
	}
	switch {
	case rep.Left > 0:
		return cli.Exit(cli.ExitAborted, nil)
	case !rep.Same:
		return cli.Exit(cli.ExitFailed, nil)
	}
	return nil
}

// PrintDifferences prints the differences between two runs of a turn.
func PrintDifferences(w io.Writer, rep *turnstone.ReplayReport) {
	for _, s := range rep.Steps {
		name := s.Name
		if s.Index > 0 {
			name = fmt.Sprintf("step %d of %d (%s)", s.Index, rep.Count, terminal.Name(s.Name))
		}
		terminal.Printf(w, "  %s: %s\n", name, strings.Join(s.What, "; "))
		printLine(w, "standard output", s.Stdout)
		printLine(w, "standard error", s.Stderr)
	}
	printState(w, rep.Changes, rep.More, rep.Env, rep.Cwd)
	if rep.FSHash != "" && rep.FSHash == rep.Turn.FSHash {
		terminal.Println(w, "  files: the same")
	}
}

// printLine prints the first line of an output that differs; nil: it is equal.
func printLine(w io.Writer, name string, c *turnstone.OutputCompare) {
	switch {
	case c == nil:
	case c.Line == 0: // too large
		terminal.Printf(w, "    %s: %d bytes before, %d now\n", name, c.OldBytes, c.NewBytes)
	default:
		terminal.Printf(w, "    %s, line %d\n    -%s\n    +%s\n", name, c.Line,
			terminal.Printable(c.Old), terminal.Printable(c.New))
	}
}

// printState prints the differences between the states of two runs.
func printState(w io.Writer, files []turnstone.FileDifference, more int, env []string, cwd bool) {
	shown := files[:min(len(files), maxRows)]
	for _, f := range shown {
		terminal.Printf(w, "  %s: %s\n", terminal.Name(f.Path), f.What)
	}
	if more += len(files) - len(shown); more > 0 {
		terminal.Printf(w, "  and %s; --json names them, up to a bound\n",
			terminal.Plural(more, "more file", "more files"))
	}
	if len(env) > 0 {
		terminal.Printf(w, "  environment: %s\n", strings.Join(env, ", "))
	}
	if cwd {
		terminal.Println(w, "  the working directory")
	}
}

// rangeText is the last line for people.
func rangeText(rep *turnstone.RangeReport) (text string) {
	last := rep.Turns[len(rep.Turns)-1]
	switch {
	case rep.First > 0:
		text = fmt.Sprintf("the first turn that differs: %d\n", rep.First)
	case rep.Left == 0:
		text = terminal.Plural(len(rep.Turns), "turn", "turns") + ": the same again\n"
	}
	if rep.Left > 0 {
		text += fmt.Sprintf("turn %d left no state: %s did not run\n", last.Number,
			terminal.Plural(rep.Left, "turn", "turns"))
	}
	if rep.Branch != "" {
		text += fmt.Sprintf("the new turns are on the branch %s\n", terminal.Name(rep.Branch))
	}
	return text
}

// IsRange reports whether ref has the form FROM..TO.
func IsRange(ref string) bool {
	_, _, is := turnstone.CutRange(ref)
	return is
}

// ExpandRange expands references to the current session in FROM..TO.
func ExpandRange(ctx context.Context, a *cli.App, x cli.Executor, ref *string) error {
	from, to, is := turnstone.CutRange(*ref)
	if err := a.Expand(ctx, x, &from); err != nil {
		return err
	}
	if *ref = from; !is {
		return nil
	}
	if err := a.Expand(ctx, x, &to); err != nil {
		return err
	}
	*ref += ".." + to
	return nil
}
