package main

import (
	"cmp"
	"context"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type templatePruneCmd struct {
	OlderThan time.Duration `help:"Remove only builds that are older, such as 240h." placeholder:"AGE"`
	DryRun    bool          `help:"Report what would be removed; remove nothing."`
	JSON      bool          `name:"json" help:"Print the removed items as JSON."`
}

// Examples returns command lines for the help.
func (c *templatePruneCmd) Examples() []string {
	return []string{
		"turn template prune --older-than 240h --dry-run",
	}
}

// Run removes the builds.
func (c *templatePruneCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		rep, err := x.PruneTemplates(ctx,
			executor.TemplatePrune{Older: c.OlderThan, DryRun: c.DryRun})
		return a.Result(rep, err, func(w io.Writer) { printPruned(w, rep, c.DryRun) })
	})
}

func printPruned(w io.Writer, rep *turnstone.TemplatePruned, dryRun bool) {
	word := "removed"
	if dryRun {
		word = "would remove"
	}
	size := func(n int64) string { return turnstone.Bytes(n).Human() }
	for _, b := range rep.Builds {
		terminal.Printf(w, "%s %s %s, %s, built %s\n", word,
			cmp.Or(b.Name, "unnamed"), b.Digest.Short(), size(b.Size),
			b.Built.Local().Format("2006-01-02 15:04"))
	}
	for _, s := range rep.Stays {
		terminal.Printf(w, "kept %s: %s\n", s.Digest.Short(), s.Why)
	}
	terminal.Printf(w, "%s %d builds, %d logs, %d downloads: %s\n",
		word, len(rep.Builds), rep.Logs, rep.Packages.Files, size(rep.Freed))
}
