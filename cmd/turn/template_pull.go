package main

import (
	"context"
	"io"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

type templatePullCmd struct {
	Reference string `arg:"" help:"Reference, such as python:3.12 or ghcr.io/org/tools:2."`
	Name      string `help:"Name of the template here; default its own." placeholder:"NAME"`
	Force     bool   `help:"Replace a different template of that name."`
	JSON      bool   `name:"json" help:"Print the template as JSON."`
	Quiet     bool   `short:"q" help:"Print no progress."`
}

// Help returns the text below the command's summary.
func (c *templatePullCmd) Help() string {
	return `Asks the registry for what the reference names now. A template that turn template
push put there is registered under its name. An image becomes a template under its
reference; turns do so by themselves on its first use, and look up a tag again after
a day. The Docker config contains your credentials for registries: docker login
writes it.`
}

// Examples returns command lines for the help.
func (c *templatePullCmd) Examples() []string {
	return []string{
		"turn template pull python:3.12",
		"turn template pull ghcr.io/org/tools:2 --name tools",
	}
}

type templatePushCmd struct {
	Template  string `arg:"" help:"Template name, or NAME:TAG."`
	Reference string `arg:"" help:"Where to, such as ghcr.io/org/tools:2."`
	JSON      bool   `name:"json" help:"Print the result as JSON."`
	Quiet     bool   `short:"q" help:"Print no progress."`
}

// Help returns the text below the command's summary.
func (c *templatePushCmd) Help() string {
	return `Puts a built template into a registry, with all its files and its spec, and prints
the digest. turn template pull REFERENCE registers it on another machine. Whoever may
read the repository sees the spec's commands and variables.`
}

// Examples returns command lines for the help.
func (c *templatePushCmd) Examples() []string {
	return []string{
		"turn template push tools ghcr.io/org/tools:2",
	}
}

// Run pushes the template.
func (c *templatePushCmd) Run(a *cli.App) error {
	return a.WithLocal("template.push", func(ctx context.Context, x *executor.Executor) error {
		p := a.Progress(c.Quiet, 0)
		rep, err := x.PushTemplate(ctx, executor.TemplatePush{Template: c.Template,
			Reference: c.Reference, Progress: p.Preparing})
		p.Close()
		return a.Result(rep, err, func(w io.Writer) { terminal.Println(w, rep.Digest) })
	})
}

type templateTagCmd struct {
	Template string `arg:"" help:"Template name, or NAME:TAG."`
	Tag      string `arg:"" help:"Tag, such as v1: the second name is NAME:TAG."`
	Force    bool   `help:"Move a tag that another template has."`
	JSON     bool   `name:"json" help:"Print the tagged template as JSON."`
}

// Help returns the text below the command's summary.
func (c *templateTagCmd) Help() string {
	return `NAME:TAG keeps the template's spec as it is now, also if NAME is built from another
spec later. turn template rm NAME:TAG removes the tag. A local tag goes before an
image of that name in a registry.`
}

// Examples returns command lines for the help.
func (c *templateTagCmd) Examples() []string {
	return []string{
		"turn template tag mine v1",
	}
}
