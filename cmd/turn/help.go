package main

import (
	"slices"
	"text/tabwriter"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type helpCmd struct {
	LLMs    bool     `name:"llms" help:"Print what an agent has to know, in one page."`
	Command []string `arg:"" optional:"" help:"Command or topic (environment)."`
}

// environmentTopic is the help topic on environment variables.
const environmentTopic = "environment"

// Run prints the help of a command, of turn, or of the environment.
func (c *helpCmd) Run(a *cli.App) error {
	if c.LLMs {
		return printLLMs(a)
	}
	if slices.Equal(c.Command, []string{environmentTopic}) {
		return printEnvironment(a)
	}
	return a.Help(c.Command)
}

// printEnvironment lists the variables that turn reads.
func printEnvironment(a *cli.App) error {
	terminal.Printf(a.Stdout, "Environment variables:\n")
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for _, v := range cli.Variables {
		terminal.Printf(w, "  %s\t%s\n", v.Name, v.Help)
	}
	return w.Flush()
}
