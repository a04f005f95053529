package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone/internal/cli"
)

// TestHelpIsShort checks that the help of each command, argument and flag is a one-line sentence,
// and that each listed command is in a group.
func TestHelpIsShort(t *testing.T) {
	p, _, err := cli.NewParser(new(commandLine), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	texts := 0
	check := func(what, help string) {
		texts++
		if len(help) > 60 || !strings.HasSuffix(help, ".") ||
			strings.ToUpper(help[:1]) != help[:1] || strings.Contains(help, " ,") {
			t.Errorf("%s: %d characters: %q", what, len(help), help)
		}
	}
	var visit func(n *kong.Node, path string)
	visit = func(n *kong.Node, path string) {
		for _, f := range n.Flags {
			check(path+" --"+f.Name, f.Help)
		}
		for _, a := range n.Positional {
			check(path+" "+a.Name, a.Help)
		}
		for _, child := range n.Children {
			if child.Hidden {
				continue
			}
			check(path+" "+child.Name, child.Help)
			if path == "turn" && child.Group == nil {
				t.Errorf("turn %s is in no group", child.Name)
			}
			visit(child, path+" "+child.Name)
		}
	}
	visit(p.Model.Node, "turn")
	for _, v := range cli.Variables {
		check(v.Name, v.Help)
	}
	if texts < 150 {
		t.Errorf("%d texts were checked", texts)
	}
}

// TestExamples checks that turn accepts the command line of each example in the help.
func TestExamples(t *testing.T) {
	p, _, err := cli.NewParser(new(commandLine), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, child := range n.Children {
			visit(child)
		}
		for _, line := range cli.ExamplesOf(n) {
			examples++
			name := "turn " + n.Path() + " "
			_, args, ok := strings.Cut(line+" ", name[:len(name)-1]+" ")
			if !ok {
				t.Errorf("%s: an example of another command: %s", name, line)
				continue
			}
			fresh, _, err := cli.NewParser(new(commandLine), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			args, _, _ = strings.Cut(args, " > ")
			args, _, _ = strings.Cut(args, " | ")
			words := strings.Fields(n.Path() + " " + strings.TrimSuffix(args, ") "))
			if _, err := fresh.Parse(words); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	for _, n := range p.Model.Children {
		visit(n)
	}
	if examples < 40 {
		t.Errorf("%d examples were checked", examples)
	}
}

// TestCommandsPage checks that docs/commands.md has every command, and no flag that does not exist.
func TestCommandsPage(t *testing.T) {
	page := string(ok[[]byte](t)(os.ReadFile("../../docs/commands.md")))
	rows := regexp.MustCompile("(?m)^\\| `turn .*").FindAllString(page, -1)
	p, _, err := cli.NewParser(new(commandLine), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]bool{}
	var visit func(n *kong.Node, below string)
	visit = func(n *kong.Node, below string) {
		for _, f := range n.Flags {
			flags["--"+f.Name] = true
		}
		for _, child := range n.Children {
			name := regexp.MustCompile("^\\| `turn " + below + "([^|]*, `)?" + child.Name + "[` ]")
			if !child.Hidden && len(child.Children) == 0 &&
				!slices.ContainsFunc(rows, name.MatchString) {
				t.Errorf("the page does not list turn %s%s", below, child.Name)
			}
			visit(child, below+child.Name+" ")
		}
	}
	visit(p.Model.Node, "")
	for _, flag := range regexp.MustCompile("--[a-z][a-z-]*").FindAllString(page, -1) {
		if !flags[flag] {
			t.Errorf("the page has %s, which no command has", flag)
		}
	}
}
