package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
)

type checkCmd struct {
	Files []string `arg:"" name:"file" help:"Documents to check; - reads standard input."`
	JSON  bool     `name:"json" help:"Print the steps as JSON."`
	flags.ForManifest
}

// Examples returns command lines for the help.
func (c *checkCmd) Examples() []string {
	return []string{
		"turn check docs/*.md",
	}
}

// Run reads every document, so that one run reports the faults of all.
func (c *checkCmd) Run(a *cli.App) error {
	docs := []checked{}
	bad := false
	x, err := executor.Planner(a.Env.Options)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	for _, file := range c.Files {
		doc, err := c.read(a, file)
		if err == nil {
			err = x.Check(doc, documentDir(file), file == "-")
		}
		if err == nil {
			err = executor.CheckScripts(context.Background(), doc)
		}
		var needs []turnstone.Ask
		if err == nil {
			needs, err = x.Asks(doc, file == "-")
		}
		if err != nil {
			var exit *cli.ExitError
			if errors.As(err, &exit) && exit.Err != nil {
				err = exit.Err
			}
			bad = true
			if c.JSON {
				body := cli.NewErrorBody(err)
				docs = append(docs, checked{File: file, Steps: []checkedStep{},
					Needs: []turnstone.Ask{}, Error: &body})
				continue
			}
			a.Complain(err)
			continue
		}
		if len(doc.Steps) == 0 {
			warnNoSteps(a, file)
		}
		d := checked{File: file, Steps: []checkedStep{}, Needs: append([]turnstone.Ask{}, needs...),
			Manifest: usedBy(doc), Ignored: doc.Ignored}
		for _, s := range doc.Steps {
			d.Steps = append(d.Steps, checkedStep{s.Name, s.Line, s.Language, s.Skip})
		}
		docs = append(docs, d)
	}
	err = a.Result(checkReport{docs}, nil, func(w io.Writer) {
		if !bad {
			printChecked(w, docs)
		}
	})
	if err == nil && bad {
		err = cli.Exit(cli.ExitUsage, nil)
	}
	return err
}

// read reads a document, with the defaults of its manifest.
func (c *checkCmd) read(a *cli.App, file string) (*document.Document, error) {
	doc, err := readDocument(a, file)
	if err != nil {
		return nil, err
	}
	project, err := c.Project(documentDir(file), a.Stderr)
	if err != nil {
		return nil, err
	}
	return doc.With(project.Values(), ""), nil
}

func printChecked(w io.Writer, docs []checked) {
	for _, d := range docs {
		for _, s := range d.Steps {
			terminal.Printf(w, "%s:%d: %s (%s)\n", d.File, s.Line, s.Name, s.Language)
		}
		for _, x := range d.Ignored {
			terminal.Printf(w, "%s:%d: %s is ignored: it is for other tools\n", d.File, x.Line, x.Name)
		}
		if m := d.Manifest; m != nil {
			terminal.Printf(w, "%s: %s sets %s\n", d.File, m.File, strings.Join(m.Keys, ", "))
		}
		for _, n := range d.Needs {
			if n.Place != "" {
				n.What = n.Place + ": " + n.What
			}
			terminal.Printf(w, "%s: a run needs %s (%s)\n", d.File, n.Flag, n.What)
		}
	}
}
