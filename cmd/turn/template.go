package main

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
)

type templateCmd struct {
	Ls    templateLsCmd    `cmd:"" help:"List templates."`
	Build templateBuildCmd `cmd:"" help:"Build a template if needed."`
	Pull  templatePullCmd  `cmd:"" help:"Pull a template or an image from a registry."`
	Push  templatePushCmd  `cmd:"" help:"Push a template to a registry."`
	Tag   templateTagCmd   `cmd:"" help:"Give a template a second name."`
	Show  templateShowCmd  `cmd:"" help:"Show the contents of a template."`
	Prune templatePruneCmd `cmd:"" help:"Remove unused builds."`
	Rm    templateRmCmd    `cmd:"" help:"Remove a template's image and its registered spec."`
}

type templateLsCmd struct {
	JSON  bool `name:"json" help:"Print JSON." xor:"form"`
	Names bool `help:"Print names only." xor:"form"`
}

type templateBuildCmd struct {
	Template string `arg:"" help:"Template name, template.toml, or its folder."`
	Lock     bool   `help:"Write the versions to template.lock beside the spec."`
	JSON     bool   `name:"json" help:"Print the built template as JSON."`
	flags.ForManifest
	Quiet bool `short:"q" help:"Print no progress."`
}

// Examples returns command lines for the help.
func (c *templateBuildCmd) Examples() []string {
	return []string{
		"turn template build base",
		"turn template build ./my-template",
	}
}

// Run builds the template.
func (c *templateBuildCmd) Run(a *cli.App) error {
	project, err := c.Project(".", a.Stderr)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		p := a.Progress(c.Quiet, 0)
		t, err := x.BuildTemplate(ctx, project.Spec(c.Template), executor.TemplateBuild{Lock: c.Lock,
			Progress: p.Preparing, Events: p.Building})
		p.Close()
		return a.Result(t, err, func(w io.Writer) { terminal.Println(w, t.Name, t.Digest) })
	})
}

type templateShowCmd struct {
	Template string `arg:"" help:"Template name."`
	JSON     bool   `name:"json" help:"Print all details and package versions as JSON."`
}

// templatesRemoved lists the removed templates, and the sessions that were removed with them.
type templatesRemoved struct {
	Removed  []string              `json:"removed"`
	Sessions []turnstone.SessionID `json:"sessions"` // anonymous sessions
}

type templateRmCmd struct {
	Templates []string `arg:"" name:"template" help:"Template names."`
	KeepFiles bool     `help:"Copy files that sessions need into the store first." xor:"how"`
	Force     bool     `help:"Remove it even if that damages sessions." xor:"how"`
	JSON      bool     `name:"json" help:"Print the removed items as JSON."`
}

// Help returns the text below the command's summary.
func (c *templateRmCmd) Help() string {
	return `A template that sessions need is not removed. Anonymous sessions do not count: those
with files that are only in its image are removed with it, and reported.`
}

// Run removes the templates, in order, up to the first failure.
func (c *templateRmCmd) Run(a *cli.App) error {
	return a.WithExecutor(func(ctx context.Context, x cli.Executor) error {
		removed, sessions := []string{}, []turnstone.SessionID{}
		var err error
		for _, name := range c.Templates {
			var gone []turnstone.Session
			gone, err = x.RemoveTemplate(ctx, executor.TemplateRemoval{Name: name,
				Keep: c.KeepFiles, Force: c.Force})
			for _, s := range gone {
				sessions = append(sessions, s.ID)
			}
			if err != nil {
				break
			}
			removed = append(removed, name)
		}
		err = a.Partial(templatesRemoved{removed, sessions}, err)
		if len(sessions) > 0 && !c.JSON {
			terminal.Printf(a.Stderr, "turn: removed %s whose files were only in the template\n",
				terminal.Plural(len(sessions), "anonymous session", "anonymous sessions"))
		}
		return err
	})
}
