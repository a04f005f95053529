package main

import (
	"runtime"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the version.
func (c *versionCmd) Run(a *cli.App) error {
	if c.JSON {
		return a.WriteJSON(versionReport{turnstone.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH})
	}
	_, err := terminal.Printf(a.Stdout, "turn %s (%s, %s/%s)\n", turnstone.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
