package main

import (
	"slices"
	"text/tabwriter"
	"turnstone.dev/turnstone/internal/terminal"
)

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"Command or topic (environment)."`
}

// environmentTopic is the help topic on environment variables.
const environmentTopic = "environment"

// Run prints the help of a command, of turn, or of the environment.
func (c *helpCmd) Run(a *app) error {
	if slices.Equal(c.Command, []string{environmentTopic}) {
		return printEnvironment(a)
	}
	var fresh cli
	parser, exited, err := newParser(&fresh, a.stdout, a.stderr)
	if err != nil {
		return err
	}
	if _, err := parser.Parse(append(c.Command, "--help")); err != nil && !*exited {
		return usage(err)
	}
	return nil
}

// printEnvironment lists the variables that turn reads.
func printEnvironment(a *app) error {
	terminal.Printf(a.stdout, "Environment variables:\n")
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, v := range variables {
		terminal.Printf(w, "  %s\t%s\n", v.name, v.help)
	}
	return w.Flush()
}
