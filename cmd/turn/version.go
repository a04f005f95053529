package main

import (
	"io"
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
	v := versionReport{turnstone.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH}
	return a.Result(v, nil, func(w io.Writer) {
		terminal.Printf(w, "turn %s (%s, %s/%s)\n", v.Version, v.Go, v.OS, v.Arch)
	})
}
