package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type showCmd struct {
	Ref string `arg:"" help:"Turn: SESSION, SESSION@N, SESSION@BRANCH or an ID."`

	Receipt    bool `help:"Print the turn's receipt."`
	NoEvidence bool `help:"Print the receipt without its signatures."`
	Files      bool `help:"List the changed files."`

	// The trace is that of the turn; the table of a receipt is made only on request.
	Commands bool `help:"List the commands that ran."`
	JSON     bool `name:"json" help:"Print JSON; --commands adds the commands."`
}

// Help returns the text below the command's summary.
func (c *showCmd) Help() string {
	return `References to turns:

  ID, or the beginning of an ID   this turn
  SESSION                         the newest turn of branch main
  SESSION@BRANCH, SESSION@TAG     the newest turn of the branch; the tagged turn
  SESSION@N                       the turn with this number
  REF~K                           the K-th parent of REF
  -, -@BRANCH, -@N, -~K           the same in the current session
  turn-N                          turn N of the current session

The current session is that of TURN_SESSION, otherwise the session that a command
named last.`
}

// Examples returns command lines for the help.
func (c *showCmd) Examples() []string {
	return []string{
		"turn show research@2",
		"turn show --receipt research",
		"turn show --files t_06h03ngqkbsd",
	}
}

// Validate is called by kong.
func (c *showCmd) Validate() error {
	switch {
	case c.Receipt && (c.Files || c.JSON):
		return errTwoForms
	case c.Commands && (c.Files || c.Receipt):
		return errors.New("--commands cannot be used with --files or --receipt")
	case c.NoEvidence && !c.Receipt:
		return errors.New("--no-evidence needs --receipt")
	}
	return nil
}

// Run shows the turn.
func (c *showCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Ref}, func(ctx context.Context, x cli.Executor) error {
		if c.Receipt {
			receipt, err := x.Receipt(ctx, c.Ref)
			if err != nil {
				return err
			}
			if c.NoEvidence {
				receipt, _, _ = document.CutEvidence(receipt)
			}
			_, err = io.WriteString(a.Stdout, terminal.Text(a.Stdout, string(receipt)))
			return err
		}
		if c.Files {
			d, err := x.Diff(ctx, turnstone.DiffRequest{From: c.Ref})
			a.Command = "diff" // the output is that of diff
			return a.Result(d, err, func(w io.Writer) { printDiff(a, w, d, false, false) })
		}
		if c.Commands && !c.JSON {
			return c.showCommands(ctx, a, x)
		}
		info, err := x.Show(ctx, c.Ref)
		if err != nil {
			return err
		}
		rep := newTurnReport(info)
		if c.Commands {
			rep.Trace = &turnstone.TraceReport{Steps: []turnstone.TraceStepReport{}}
			err = x.Trace(ctx, c.Ref, rep.Trace.Add)
		}
		return a.Result(rep, err, func(w io.Writer) { printTurn(w, info) })
	})
}

// showCommands prints the turn's trace while it is read.
func (c *showCmd) showCommands(ctx context.Context, a *cli.App, x cli.Executor) error {
	out := bufio.NewWriter(a.Stdout) // keeps the first error
	err := x.Trace(ctx, c.Ref, func(l turnstone.TraceLine) error {
		printTraceLine(out, l)
		return nil
	})
	return errors.Join(err, out.Flush())
}

// printTraceLine prints a step, or one of its commands: line, time since the step's start,
// duration, exit code and source.
func printTraceLine(out io.Writer, l turnstone.TraceLine) {
	switch {
	case l.Step != nil:
		s := l.Step
		took := terminal.Elapsed(time.Duration(s.Millis) * time.Millisecond)
		text := fmt.Sprintf("%s: %s, %s, %s", s.Name, s.Status, took,
			terminal.Plural(int(min(s.Commands, 1<<31-1)), "command", "commands"))
		if s.LeftOut > 0 {
			text += fmt.Sprintf(" (%d not listed)", s.LeftOut)
		}
		if s.Untraced != "" {
			text += "; " + s.Untraced
		}
		terminal.Println(out, text)
	case l.Command != nil:
		c := l.Command
		where, exit := "-", "-"
		if c.Place != nil {
			where = fmt.Sprint(c.Place.Line)
		}
		if c.ExitCode != nil {
			exit = fmt.Sprint(*c.ExitCode)
		}
		terminal.Printf(out, "%6s  +%s  %s  exit %s  %s\n", where,
			shortTime(c.Start), shortTime(c.Duration),
			exit, terminal.Name(c.Text))
	}
}

func printTurn(w io.Writer, i *turnstone.TurnInfo) {
	terminal.Fields(w, func(line func(key, value string)) { turnFields(i, line) })
}

func turnFields(i *turnstone.TurnInfo, line func(key, value string)) {
	t := i.Turn
	line("turn", fmt.Sprintf("%d (%s)", t.Number, t.ID))
	line("session", i.Session.Label())
	line("title", t.Title)
	line("branch", t.Branch)
	line("head of", strings.Join(i.Heads, ", "))
	line("tags", strings.Join(i.Tags, ", "))
	line("parents", join(t.Parents))
	line("children", join(i.Children))
	line("result", outcome(t))
	line("started", t.Started.Format(time.RFC3339))
	if r := i.Record; r != nil {
		line("error", r.Error)
		line("took", terminal.Elapsed(time.Duration(r.Millis)*time.Millisecond))
		line("template", fmt.Sprintf("%s (%s)", r.Image, r.Template.Short()))
		line("isolation", r.Isolation)
		if r.Determinism != nil {
			line("deterministic", r.Determinism.String())
		}
		for _, s := range r.Steps {
			exit := ""
			if s.ExitCode != nil && *s.ExitCode != 0 {
				exit = fmt.Sprintf(", exit code %d", *s.ExitCode)
			}
			line("step", fmt.Sprintf("%s: %s%s", s.Name, s.Status, exit))
		}
		line("secrets", strings.Join(r.Secrets, ", "))
		line("home", r.Home)
		line("lifetime", string(r.Lifetime))
		if r.VM != nil {
			line("snapshot", "vm")
		}
		line("changed", r.Layer.String())
		line("layer", string(r.Layer.Digest))
		line("resumed", times(len(r.Resumed)))
	} else {
		line("kept", i.Kept)
	}
	if c := i.Checkpoint; c != nil {
		line("kept steps", fmt.Sprintf("1 to %d of the document (turn resume continues after them)",
			c.Step))
		line("resumed", times(len(c.Resumed)))
	}
	if s := i.State; s != nil {
		line("fs", string(s.Tree.Hash))
		line("cwd", s.Cwd)
		line("env", fmt.Sprintf("%d variables", len(s.Env)))
	}
}

// times returns how often something happened; empty: never.
func times(n int) string {
	if n == 0 {
		return ""
	}
	return terminal.Plural(n, "time", "times")
}

func join[T any](list []T) string {
	var parts []string
	for _, v := range list {
		parts = append(parts, fmt.Sprint(v))
	}
	return strings.Join(parts, ", ")
}

// shortTime formats a command's time, which may be far below a millisecond.
func shortTime(m turnstone.Millis) string {
	return time.Duration(m).Round(10 * time.Microsecond).String()
}
