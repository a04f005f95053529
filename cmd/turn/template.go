package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/terminal"
)

type templateCmd struct {
	Ls    templateLsCmd    `cmd:"" help:"List templates."`
	Build templateBuildCmd `cmd:"" help:"Build a template if needed."`
	Pull  templatePullCmd  `cmd:"" help:"Pull an image from a registry."`
	Show  templateShowCmd  `cmd:"" help:"Show the contents of a template."`
	Prune templatePruneCmd `cmd:"" help:"Remove unused builds."`
	Rm    templateRmCmd    `cmd:"" help:"Remove a template's image and its registered spec."`
}

// withTemplates is App.Do with the templates.
func withTemplates(a *cli.App, f func(ctx context.Context, s *template.Store) error) error {
	h, err := a.StateDir()
	if err != nil {
		return err
	}
	s := template.NewStore(h.Path("templates")).From(template.Sources{
		Debian: a.Env.DebianMirror, DebianSecurity: a.Env.DebianSecurityMirror,
		Pip: a.Env.PipIndex, Npm: a.Env.NpmRegistry})
	return a.Do(func(ctx context.Context) error { return f(ctx, s) })
}

type templateLsCmd struct {
	JSON  bool `name:"json" help:"Print JSON." xor:"form"`
	Names bool `help:"Print names only." xor:"form"`
}

// Run lists the templates.
func (c *templateLsCmd) Run(a *cli.App) error {
	return withTemplates(a, func(ctx context.Context, s *template.Store) error {
		entries, err := s.List(ctx)
		report := templatesReport{append([]template.Entry{}, entries...)}
		return a.Result(report, err, func(w io.Writer) {
			head := "NAME\tDIGEST\tIMAGE\tDESCRIPTION"
			terminal.List(w, c.Names, head, entries, func(e template.Entry) []any {
				return []any{e.Name, e.Digest.Short(), imageSize(e), e.Description}
			})
		})
	})
}

func imageSize(e template.Entry) string {
	if e.Problem != "" {
		return "unusable: " + terminal.Printable(e.Problem)
	}
	if !e.Ready {
		return "not built"
	}
	return turnstone.Bytes(e.Size).Human()
}

type templateBuildCmd struct {
	Template string `arg:"" help:"Template name, template.toml, or its folder."`
	Lock     bool   `help:"Write the versions to template.lock beside the spec."`
	JSON     bool   `name:"json" help:"Print the built template as JSON."`
	Quiet    bool   `short:"q" help:"Print no progress."`
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
	return a.WithExecutor(func(ctx context.Context, x *executor.Executor) error {
		p := a.Progress(c.Quiet, 0)
		t, err := x.BuildTemplate(ctx, c.Template, executor.TemplateBuild{Lock: c.Lock,
			Progress: p.Preparing, Events: p.Building})
		p.Close()
		return a.Result(t, err, func(w io.Writer) { terminal.Println(w, t.Name, t.Digest) })
	})
}

type templateShowCmd struct {
	Template string `arg:"" help:"Template name."`
	JSON     bool   `name:"json" help:"Print all details and package versions as JSON."`
}

// Run shows the template.
func (c *templateShowCmd) Run(a *cli.App) error {
	return withTemplates(a, func(ctx context.Context, s *template.Store) error {
		d, err := s.Show(ctx, c.Template)
		return a.Result(d, err, func(w io.Writer) { printDetails(w, d) })
	})
}

func printDetails(w io.Writer, d *template.Details) {
	terminal.Fields(w, func(line func(key, value string)) { detailFields(d, line) })
}

func detailFields(d *template.Details, line func(key, value string)) {
	line("name", d.Name)
	line("description", d.Description)
	line("digest", string(d.Digest))
	line("base", d.Spec.Base)
	for _, p := range d.Spec.Pip {
		line("pip", p)
	}
	for _, p := range d.Spec.Npm {
		line("npm", p)
	}
	for _, c := range d.Spec.Commands {
		line("command", c)
	}
	for _, p := range d.Spec.Packages {
		version := ""
		if d.Template != nil {
			version = d.Template.Packages[p]
		}
		line("package", p+" "+version)
	}
	for _, f := range d.Spec.Files {
		line("file", f.Path)
	}
	line("user", d.Spec.User)
	if d.Spec.Lock != nil {
		line("locked", "FS hash "+string(d.Spec.Lock.FSHash))
	}
	line("image", imageSize(d.Entry))
	if d.Template != nil {
		line("packages", fmt.Sprintf("%d in all", len(d.Template.Packages)))
		for _, l := range d.Template.Layers {
			line("layer", fmt.Sprintf("%s, %d files, %s",
				l.Spec.Short(), l.Files, turnstone.Bytes(l.Bytes).Human()))
		}
		for _, kv := range d.Template.EnvList() {
			line("env", kv)
		}
		line("root", d.Template.Root)
		took := terminal.Elapsed(time.Duration(d.Template.BuildTime))
		line("built", d.Built.Format(time.RFC3339)+" in "+took)
	}
	line("log", d.Log)
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
	return a.WithExecutor(func(ctx context.Context, x *executor.Executor) error {
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
