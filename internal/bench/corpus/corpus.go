// Package corpus holds programs whose results differ from run to run on an ordinary machine, runs
// them in deterministic turns, and compares the results. The tests run them a few times, the
// benchmark more often.
package corpus

import (
	"bytes"
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

// A file of programs is a turn document with deterministic: true, and each of its steps is a
// program, which needs no other step.
//
//go:embed programs/*.md
var programs embed.FS

const deterministic = "deterministic: true\n"

// A Group is a file of programs that use the same kind of software.
type Group struct {
	Name     string
	Source   []byte // the document, with all programs
	Image    string // of all programs; empty: the default
	Files    []string
	Programs []Program
}

// A Program is one step.
type Program struct {
	Name   string
	script string
	fails  bool // may end with an error, where the machine lacks what it reads
}

// Groups returns all groups, by name.
func Groups() ([]Group, error) {
	entries, err := programs.ReadDir("programs")
	if err != nil {
		return nil, err
	}
	var all []Group
	for _, e := range entries {
		source, err := programs.ReadFile(path.Join("programs", e.Name()))
		if err != nil {
			return nil, err
		}
		doc, err := document.Parse(e.Name(), source)
		if err != nil {
			return nil, err
		}
		g := Group{Name: strings.TrimSuffix(e.Name(), ".md"), Source: source,
			Image: doc.Front.Image, Files: doc.Front.Files}
		for _, s := range doc.Steps {
			g.Programs = append(g.Programs, Program{s.Name, s.Script, s.ContinueOnError})
		}
		all = append(all, g)
	}
	return all, nil
}

// Select returns the programs called names.
func (g Group) Select(names ...string) (Group, error) {
	for _, name := range names {
		if !slices.ContainsFunc(g.Programs, func(p Program) bool { return p.Name == name }) {
			return Group{}, fmt.Errorf("group %s has no program %s", g.Name, name)
		}
	}
	g.Programs = slices.DeleteFunc(slices.Clone(g.Programs), func(p Program) bool {
		return !slices.Contains(names, p.Name)
	})
	return g, nil
}

// Apart returns g without the programs that are expected to differ under tier, and each of these
// alone: a program that differs changes what the programs after it see.
func (g Group) Apart(tier turnstone.Tier) []Group {
	same, alone := g, []Group(nil)
	same.Programs = nil
	for _, p := range g.Programs {
		if _, differs := Reason(tier, p.Name); !differs {
			same.Programs = append(same.Programs, p)
			continue
		}
		one := g
		one.Programs = []Program{p}
		alone = append(alone, one)
	}
	if len(same.Programs) == 0 {
		return alone
	}
	return append([]Group{same}, alone...)
}

// Document returns a document of the programs: deterministic under tier, or ordinary if tier is
// empty.
func (g Group) Document(tier turnstone.Tier) []byte {
	var b bytes.Buffer
	b.WriteString("---\n")
	if g.Image != "" {
		fmt.Fprintf(&b, "image: %s\n", g.Image)
	}
	if len(g.Files) > 0 {
		fmt.Fprintf(&b, "files:\n  - %s\n", strings.Join(g.Files, "\n  - "))
	}
	if tier == "" {
		b.WriteString("network: off\ncpus: 1\n")
	} else {
		fmt.Fprintf(&b, "%stier: %s\n", deterministic, tier)
	}
	b.WriteString("---\n")
	for _, p := range g.Programs {
		attributes := ""
		if p.fails {
			attributes = " continue-on-error"
		}
		fmt.Fprintf(&b, "\n```bash name=%s%s\n%s```\n", p.Name, attributes, p.script)
	}
	return b.Bytes()
}
