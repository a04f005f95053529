package main

import (
	"io"
	"slices"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/flags"
	"turnstone.dev/turnstone/internal/terminal"
)

// usedBy returns what a document takes from a manifest; nil: nothing.
func usedBy(doc *document.Document) *usedManifest {
	def := doc.Defaults
	u := &usedManifest{File: def.Place, Keys: slices.Clone(doc.Inherited)}
	for key, said := range map[string]bool{"substrate": def.Substrate != "",
		"guest": def.Guest != "", "branches": len(def.Branches) > 0} {
		if said {
			u.Keys = append(u.Keys, key)
		}
	}
	slices.Sort(u.Keys)
	if len(u.Keys) == 0 {
		return nil
	}
	return u
}

type initCmd struct {
	Folder string `arg:"" optional:"" default:"." help:"Folder of the project (default: this one)."`
	JSON   bool   `name:"json" help:"Print the written file as JSON."`
}

// Help returns the text below the command's summary.
func (c *initCmd) Help() string {
	return `Writes turnstone.toml with every key in a comment. The file has the defaults of all
documents in the folder and below it: docs/manifest.md. A file that exists is an error.`
}

// Examples returns command lines for the help.
func (c *initCmd) Examples() []string { return []string{"turn init"} }

// Run writes the manifest.
func (c *initCmd) Run(a *cli.App) error {
	name, err := flags.WriteManifest(c.Folder)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	return a.Result(initReport{name}, nil, func(w io.Writer) { terminal.Println(w, name) })
}
