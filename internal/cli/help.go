package cli

import (
	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone/internal/terminal"
)

// ExamplesOf returns the command lines that a command's help shows as examples.
func ExamplesOf(command *kong.Node) []string {
	c, ok := command.Target.Addr().Interface().(interface{ Examples() []string })
	if !ok {
		return nil
	}
	return c.Examples()
}

// printHelp prints kong's help, and below it the examples of the command.
func (n *naming) printHelp(o kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(o, ctx); err != nil {
		return err
	}
	command := ctx.Selected()
	if command == nil {
		return nil
	}
	for i, line := range ExamplesOf(command) {
		if i == 0 {
			terminal.Printf(ctx.Stdout, "\nExamples:\n")
		}
		terminal.Println(ctx.Stdout, "  "+n.in(line))
	}
	return nil
}

// nameGroups gives the commands below another command a heading: kong would repeat the group of
// that command.
func nameGroups(k *kong.Kong) error {
	k.Model.HelpFlag.Help = "Show help."
	for _, command := range k.Model.Children {
		for _, sub := range command.Children {
			sub.Group = &kong.Group{Key: "commands", Title: "Commands:"}
		}
	}
	return nil
}
