package main

import (
	_ "embed" // the page

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// llms is what an agent has to know. It is also at the root of the repository.
//
//go:embed llms.txt
var llms string

// printLLMs prints the page for agents.
func printLLMs(a *cli.App) error {
	_, err := terminal.Printf(a.Stdout, "%s", llms)
	return err
}
