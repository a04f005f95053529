package main

type templatePullCmd struct {
	Image string `arg:"" help:"Image reference, such as python:3.12."`
	JSON  bool   `name:"json" help:"Print the template as JSON."`
	Quiet bool   `short:"q" help:"Print no progress."`
}

// Help returns the text below the command's summary.
func (c *templatePullCmd) Help() string {
	return `Asks the registry for the reference's current image, and creates a template from
it. Turns do so by themselves on the first use of a reference, and look up a tag
again after a day. The Docker config contains your credentials for registries:
docker login writes it.`
}

// Examples returns command lines for the help.
func (c *templatePullCmd) Examples() []string {
	return []string{
		"turn template pull python:3.12",
	}
}
