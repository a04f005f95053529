package main

import (
	_ "embed" // the page
	"strings"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// llms is what an agent has to know. It is also at the root of the repository.
//
//go:embed llms.txt
var llms string

// printLLMs prints the page for agents.
func printLLMs(a *cli.App) error {
	for line := range strings.Lines(llms) { // it escapes the end of a line
		if _, err := terminal.Println(a.Stdout, strings.TrimSuffix(line, "\n")); err != nil {
			return err
		}
	}
	return nil
}
