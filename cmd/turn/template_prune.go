package main

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type templatePruneCmd struct {
	OlderThan time.Duration `help:"Remove only builds that are older, such as 240h." placeholder:"DURATION"`
	DryRun    bool          `help:"Report what would be removed; remove nothing."`
	JSON      bool          `name:"json" help:"Print JSON."`
}

// Run removes the builds.
func (c *templatePruneCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x *executor.Executor) error {
		rep, err := x.PruneTemplates(ctx, executor.TemplatePrune{Older: c.OlderThan, DryRun: c.DryRun})
		if err != nil {
			return err
		}
		if c.JSON {
			return a.WriteJSON(rep)
		}
		word := "removed"
		if c.DryRun {
			word = "would remove"
		}
		for _, b := range rep.Builds {
			name := b.Name
			if name == "" {
				name = "unnamed"
			}
			terminal.Printf(a.Stdout, "%s %s %s, %s, built %s\n", word, terminal.Printable(name), b.Digest.Short(), turnstone.Bytes(b.Size).Human(), b.Built.Local().Format("2006-01-02 15:04"))
		}
		for _, s := range rep.Stays {
			terminal.Printf(a.Stdout, "kept %s: %s\n", s.Digest.Short(), terminal.Printable(s.Why))
		}
		_, err = terminal.Printf(a.Stdout, "%s %d builds, %d logs, %d downloads: %s\n", word, len(rep.Builds), rep.Logs, rep.Packages.Files, turnstone.Bytes(rep.Freed).Human())
		return err
	})
}
