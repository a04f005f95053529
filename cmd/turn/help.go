package main

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command to explain."`
}

// Run prints the help of a command, or of turn.
func (c *helpCmd) Run(a *app) error {
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
