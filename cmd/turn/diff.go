package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/proofcmd"
	"turnstone.dev/turnstone/internal/terminal"
)

type diffCmd struct {
	From string `arg:"" help:"Turn: SESSION@N, SESSION@BRANCH or an ID."`
	To   string `arg:"" optional:"" help:"Other turn (default: the changes of the first turn)."`

	Patch bool `short:"p" help:"Print patches of text files." xor:"form"`
	Stat  bool `help:"Print the changed lines of each text file." xor:"form"`
	JSON  bool `name:"json" help:"Print JSON; -p and --stat add patches and line counts."`

	Results bool `help:"Also compare steps, outputs and commands."`
}

// Validate is called by kong.
func (c *diffCmd) Validate() error { return proofcmd.CheckResults(c.Results, c.To) }

// Help returns the text below the command's summary.
func (c *diffCmd) Help() string {
	return `Each line is a path that differs: A added, D deleted, M changed content or
attributes, T another type, such as a symlink, R renamed with the same content.
Environment and working directory follow the files. Timestamps are not compared.
Names with control characters are quoted. Patches have git's format; a binary file
is only reported to differ.

--results also compares what the turns said and did: the result, the steps with their
exit codes, the first line of each output that differs, and the commands that only one
of them ran or that ended differently. Durations are shown and not compared.`
}

// Examples returns command lines for the help.
func (c *diffCmd) Examples() []string {
	return []string{
		"turn diff research@2",
		"turn diff -p research@2 research@explore",
	}
}

// Run prints the differences.
func (c *diffCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.From}, func(ctx context.Context, x cli.Executor) error {
		// all other references are in From's session
		if strings.HasPrefix(c.To, "-") || strings.HasPrefix(c.To, "@") {
			if err := a.Expand(ctx, x, &c.To); err != nil {
				return err
			}
		}
		d, err := x.Diff(ctx, turnstone.DiffRequest{From: c.From, To: c.To, Text: c.Patch,
			Stat: c.Stat, Results: c.Results})
		return a.Result(d, err, func(w io.Writer) {
			printDiff(a, w, d, c.Patch, c.Stat)
			if d.Results != nil {
				proofcmd.PrintResults(w, d.Results)
			}
		})
	})
}

func printDiff(a *cli.App, out io.Writer, d *turnstone.StateDiff, patch, stat bool) {
	for _, f := range d.Files {
		switch {
		case patch && f.Patch != "":
			_, _ = io.WriteString(out, terminal.Patch(a.Stdout, f.Patch)) // out keeps its error
		case stat:
			terminal.Println(out, changeLine(f)+"  "+statOf(f))
		default:
			terminal.Println(out, changeLine(f)+what(f))
		}
	}
	if stat {
		terminal.Println(out, statSum(d))
	}
	printEnv(out, d)
}

// changeLine describes a path's change.
func changeLine(f turnstone.FileChange) string {
	if f.Status == turnstone.ChangeRenamed {
		return fmt.Sprintf("%s %s -> %s", f.Status, terminal.Name(f.OldPath), terminal.Name(f.Path))
	}
	return fmt.Sprintf("%s %s", f.Status, terminal.Name(f.Path))
}

// what names the changed attributes, unless only the content changed.
func what(f turnstone.FileChange) string {
	if f.Status != turnstone.ChangeModified || len(f.What) == 1 && f.What[0] == "content" {
		return ""
	}
	return " (" + strings.Join(f.What, ", ") + ")"
}

func statOf(f turnstone.FileChange) string {
	switch {
	case f.Binary:
		return fmt.Sprintf("%s -> %s", sizeOf(f.Old), sizeOf(f.New))
	case f.Plus+f.Minus > 0:
		return fmt.Sprintf("+%d -%d", f.Plus, f.Minus)
	case f.Status == turnstone.ChangeModified:
		return strings.Join(f.What, ", ")
	}
	return ""
}

func sizeOf(f *turnstone.FileInfo) string {
	if f == nil {
		return "none"
	}
	return turnstone.Bytes(f.Size).Human()
}

func statSum(d *turnstone.StateDiff) string {
	plus, minus := 0, 0
	for _, f := range d.Files {
		plus, minus = plus+f.Plus, minus+f.Minus
	}
	return fmt.Sprintf("%s changed, %s added, %d removed",
		terminal.Plural(len(d.Files), "path", "paths"),
		terminal.Plural(plus, "line", "lines"), minus)
}

func printEnv(out io.Writer, d *turnstone.StateDiff) {
	for _, e := range d.Env {
		switch {
		case e.Old == nil:
			terminal.Println(out, "A env "+terminal.Name(e.Name)+"="+terminal.Name(*e.New))
		case e.New == nil:
			terminal.Println(out, "D env "+terminal.Name(e.Name)+"="+terminal.Name(*e.Old))
		default:
			terminal.Printf(out, "M env %s=%s -> %s\n",
				terminal.Name(e.Name), terminal.Name(*e.Old), terminal.Name(*e.New))
		}
	}
	if d.Cwd != nil {
		terminal.Printf(out, "M cwd %s -> %s\n", terminal.Name(d.Cwd.Old), terminal.Name(d.Cwd.New))
	}
}

// errTwoForms is the cause if several output formats are requested.
var errTwoForms = errors.New("--receipt cannot be used with --files or --json")
