package main

import (
	"context"
	"strconv"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type cpCmd struct {
	Path statePath `arg:"" help:"TURN:PATH, such as research@2:/workspace/out.csv." placeholder:"TURN:PATH"`
	Dest string    `arg:"" help:"Destination: a folder or a new name."`
	JSON bool      `name:"json" help:"Print skipped files as JSON."`
}

// Help returns the text below the command's summary.
func (c *cpCmd) Help() string {
	return `Copies from the state that a turn left; no sandbox is started. Modes (less the umask)
and times are kept, owners are not. Devices, pipes, and symlinks that lead out of the
copied folder are omitted, and reported.`
}

// Examples returns command lines for the help.
func (c *cpCmd) Examples() []string {
	return []string{
		"turn cp research@2:/workspace/out.csv .",
	}
}

// Maximum number of omitted files that are named.
const (
	maxSkips     = 20
	maxSkipsJSON = 10_000
)

// Run copies the file or folder.
func (c *cpCmd) Run(a *cli.App) error {
	refs := []*string{&c.Path.ref}
	return a.WithRefs(refs, func(ctx context.Context, x cli.Executor) error {
		rep := copyReport{Skipped: []skipped{}}
		most := maxSkips
		if c.JSON {
			most = maxSkipsJSON
		}
		err := x.CopyOut(ctx, c.Path.ref, c.Path.path, c.Dest, func(name, why string) {
			if len(rep.Skipped) == most {
				rep.More++
				return
			}
			rep.Skipped = append(rep.Skipped, skipped{name, why})
			if !c.JSON {
				terminal.Printf(a.Stderr, "turn: %s: %s\n", strconv.Quote(name), why)
			}
		})
		switch {
		case c.JSON && err == nil:
			return a.WriteJSON(rep)
		case !c.JSON && rep.More > 0:
			terminal.Printf(a.Stderr, "turn: and %d more\n", rep.More)
		}
		return err
	})
}
