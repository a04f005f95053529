package main

import (
	"runtime"

	"turnstone.dev/turnstone"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

// Run prints the version.
func (c *versionCmd) Run(a *app) error {
	if c.JSON {
		return writeJSON(a.stdout, map[string]string{
			"version": turnstone.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		})
	}
	_, err := putf(a.stdout, "turn %s (%s, %s/%s)\n", turnstone.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
