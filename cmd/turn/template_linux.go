//go:build !turnstone_client

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/terminal"
)

// withTemplates is App.Do with the templates.
func withTemplates(a *cli.App, f func(ctx context.Context, s *template.Store) error) error {
	if err := a.OnlyHere("template"); err != nil {
		return cli.Fail(err)
	}
	h, err := a.StateDir()
	if err != nil {
		return err
	}
	s := template.NewStore(h.Path("templates")).From(template.Sources{
		Debian: a.Env.DebianMirror, DebianSecurity: a.Env.DebianSecurityMirror,
		Pip: a.Env.PipIndex, Npm: a.Env.NpmRegistry})
	return a.Do(func(ctx context.Context) error { return f(ctx, s) })
}

// A templatesReport is the output of turn template ls.
type templatesReport struct {
	Templates []template.Entry `json:"templates"`
}

// Run lists the templates.
func (c *templateLsCmd) Run(a *cli.App) error {
	if found, err := c.listOnHost(a); found {
		return err
	}
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
	if from := d.Pulled; from != nil {
		line("pulled from", from.Reference)
		line("pushed as", fmt.Sprintf("%s, digest %s: %s", terminal.Printable(from.Artifact.Name),
			from.Artifact.Digest, terminal.Printable(from.Artifact.Description)))
	}
	for _, p := range d.Spec.Pip {
		line("pip", p)
	}
	for _, p := range d.Spec.Npm {
		line("npm", p)
	}
	for _, w := range d.Spec.Wheels {
		line("wheel", w.File)
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

// Run pulls the template or the image.
func (c *templatePullCmd) Run(a *cli.App) error {
	return withTemplates(a, func(ctx context.Context, s *template.Store) error {
		p := a.Progress(c.Quiet, 0)
		t, err := s.PullTemplate(ctx, c.Reference,
			template.PullOptions{Name: c.Name, Replace: c.Force, Progress: p.Preparing})
		p.Close()
		return a.Result(t, err, func(w io.Writer) {
			terminal.Println(w, t.Name, t.Digest)
			d, err := s.Show(ctx, t.Name)
			if err == nil && d.Pulled != nil && !c.Quiet {
				terminal.Printf(a.Stderr, "turn: pulled template %s from %s\n", t.Name,
					d.Pulled.Reference)
			}
		})
	})
}

// Run tags the template.
func (c *templateTagCmd) Run(a *cli.App) error {
	return withTemplates(a, func(ctx context.Context, s *template.Store) error {
		e, err := s.Tag(ctx, c.Template, c.Tag, c.Force)
		return a.Result(e, err, func(w io.Writer) { terminal.Println(w, e.Name, e.Digest) })
	})
}
