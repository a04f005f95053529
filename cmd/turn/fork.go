package main

import (
	"context"
	"io"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type forkCmd struct {
	Ref    string `arg:"" help:"Turn: SESSION@N, SESSION@BRANCH~K or an ID."`
	Branch string `required:"" short:"b" help:"Name of the new branch." placeholder:"NAME"`
	Live   bool   `help:"Clone the turn's paused machine, too."`
	JSON   bool   `name:"json" help:"Print the branch as JSON."`
}

// Examples returns command lines for the help.
func (c *forkCmd) Examples() []string {
	return []string{
		"turn fork research@1 --branch explore",
	}
}

// Run creates the branch.
func (c *forkCmd) Run(a *cli.App) error {
	return a.WithRefs([]*string{&c.Ref}, func(ctx context.Context, x cli.Executor) error {
		fork := x.Fork
		if c.Live {
			fork = x.ForkLive
		}
		b, err := fork(ctx, c.Ref, c.Branch)
		return a.Result(b, err, func(w io.Writer) { terminal.Println(w, b.Name, b.Head) })
	})
}
