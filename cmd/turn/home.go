package main

import (
	"context"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type homeCmd struct {
	Ls homeLsCmd `cmd:"" help:"List persistent home directories."`
	Rm homeRmCmd `cmd:"" help:"Delete home directories with their files."`
}

type homeLsCmd struct {
	JSON  bool `name:"json" help:"Print JSON." xor:"form"`
	Names bool `help:"Print names only." xor:"form"`
}

// Run lists the homes.
func (c *homeLsCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		all, err := x.Homes(ctx)
		now := time.Now()
		err = a.Result(homesReport{all}, err, func(w io.Writer) {
			head := "HOME\tSIZE\tUSED\tTURN"
			terminal.List(w, c.Names, head, all, func(h turnstone.HomeInfo) []any {
				used := terminal.Ago(h.Used, now)
				if h.InUse {
					used = "now"
				}
				return []any{h.Name, turnstone.Bytes(h.Bytes).Human(), used, h.Turn}
			})
		})
		if err == nil {
			a.SayUnseen(ctx, x)
		}
		return err
	})
}

// A homesReport is the JSON output of turn home ls.
type homesReport struct {
	Homes []turnstone.HomeInfo `json:"homes"`
}

type homeRmCmd struct {
	Homes []string `arg:"" name:"home" help:"Names of homes."`
	JSON  bool     `name:"json" help:"Print the removed items as JSON."`
}

// Help returns the text below the command's summary.
func (c *homeRmCmd) Help() string {
	return `The files are deleted, with their earlier states: no session and no export contains
them, and turn gc frees the space. A home that a turn uses is not removed. If a name is
unknown, no home is removed.`
}

// Run removes the homes, in order, up to the first failure.
func (c *homeRmCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		rep := cli.RemovedReport{Removed: []string{}}
		var err error
		for _, name := range c.Homes { // a missing home is a mistake: nothing is removed then
			if err == nil {
				err = x.HasHome(ctx, name)
			}
		}
		for _, name := range c.Homes {
			if err != nil {
				break
			}
			if err = x.RemoveHome(ctx, name); err != nil {
				break
			}
			rep.Removed = append(rep.Removed, name)
		}
		return a.Partial(rep, err)
	})
}
