package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type showCmd struct {
	Ref string `arg:"" help:"Turn: SESSION, SESSION@N, SESSION@BRANCH or an ID."`

	Receipt bool `help:"Print the turn's receipt."`
	Files   bool `help:"List the changed files."`
	JSON    bool `name:"json" help:"Print the record, or with --files the changes, as JSON."`
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
	if c.Receipt && (c.Files || c.JSON) {
		return errTwoForms
	}
	return nil
}

// Run shows the turn.
func (c *showCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Ref}, func(ctx context.Context, x *executor.Executor) error {
		if c.Receipt {
			receipt, err := x.Receipt(ctx, c.Ref)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.Stdout, terminal.Text(a.Stdout, string(receipt)))
			return err
		}
		if c.Files {
			d, err := x.Diff(ctx, turnstone.DiffRequest{From: c.Ref})
			a.Command = "diff" // the output is that of diff
			return a.Result(d, err, func(w io.Writer) { printDiff(a, w, d, false, false) })
		}
		info, err := x.Show(ctx, c.Ref)
		if err != nil {
			return err
		}
		return a.Result(newTurnReport(info), nil, func(w io.Writer) { printTurn(w, info) })
	})
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
	} else {
		line("kept", i.Kept)
	}
	if s := i.State; s != nil {
		line("fs", string(s.Tree.Hash))
		line("cwd", s.Cwd)
		line("env", fmt.Sprintf("%d variables", len(s.Env)))
	}
}

func join[T any](list []T) string {
	var parts []string
	for _, v := range list {
		parts = append(parts, fmt.Sprint(v))
	}
	return strings.Join(parts, ", ")
}
