package main

import (
	"context"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/completion"
	"turnstone.dev/turnstone/internal/terminal"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// Help returns the text below the command's summary.
func (c *completionCmd) Help() string {
	return `The shell reads the script at each start, for instance from ~/.bashrc, ~/.zshrc or
~/.config/fish/config.fish.`
}

// Examples returns command lines for the help.
func (c *completionCmd) Examples() []string {
	return []string{
		"source <(turn completion bash)",
		"source <(turn completion zsh)",
		"turn completion fish | source",
	}
}

// Run prints the script, which is generated from the command line's own model.
func (c *completionCmd) Run(a *cli.App) error {
	_, err := io.WriteString(a.Stdout, completion.Script(c.Shell, a.Kong.Model.Node))
	return err
}

type completeRefsCmd struct {
	Word     string `arg:"" optional:"" help:"Beginning of the reference."`
	Sessions bool   `help:"Print sessions only."`
}

// completeTurns is the number of turns of the current session that are offered, the newest first.
const completeTurns = 20

// Run prints the completions of a reference. It never fails, because a completing shell cannot show
// a message.
func (c *completeRefsCmd) Run(a *cli.App) error {
	_ = a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		if name, _, ok := strings.Cut(c.Word, "@"); ok {
			return completeSelectors(ctx, a, x, name)
		}
		all, err := x.Sessions(ctx)
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.Name != "" {
				terminal.Println(a.Stdout, s.Name)
			}
		}
		current, err := x.CurrentSession(ctx, a.Env.Session)
		if err != nil {
			return err
		}
		terminal.Println(a.Stdout, "-")
		if c.Sessions {
			return nil
		}
		g, err := x.Log(ctx, string(current.ID), completeTurns)
		if err != nil {
			return err
		}
		for _, t := range g.Turns {
			terminal.Printf(a.Stdout, "%s%d\n", turnstone.TurnWord, t.Number)
		}
		return nil
	})
	return nil
}

// completeSelectors prints the branches and tags of a session, which name refers to.
func completeSelectors(ctx context.Context, a *cli.App, x cli.Executor, name string) error {
	ref := name
	if ref == "" {
		ref = "-"
	}
	if err := a.Expand(ctx, x, &ref); err != nil {
		return err
	}
	g, err := x.Session(ctx, ref)
	if err != nil {
		return err
	}
	for _, b := range g.Branches {
		terminal.Println(a.Stdout, name+"@"+b.Name)
	}
	for _, t := range g.Tags {
		terminal.Println(a.Stdout, name+"@"+t.Name)
	}
	return nil
}
