package main

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone/internal/cli"
)

// TestGrammarOfOneCommand checks that kong's model of a command is the same, whether it has read
// all commands or only that one.
func TestGrammarOfOneCommand(t *testing.T) {
	all := grammarNodes(t, new(commandLine))
	for _, node := range all.Children {
		grammar := cli.GrammarFor(reflect.TypeFor[commandLine](), []string{"-v", node.Name})
		whole := reflect.TypeOf(grammar) == reflect.TypeFor[*commandLine]()
		if whole != (node.Name == "help" || node.Name == "completion") {
			t.Errorf("%s: %T", node.Name, grammar)
		}
		one := grammarNodes(t, grammar)
		for _, child := range one.Children {
			if child.Name == node.Name && describe(child) != describe(node) {
				t.Errorf("%s:\n%s\nof all commands:\n%s", node.Name, describe(child),
					describe(node))
			}
		}
		if describeFlags(one) != describeFlags(all) {
			t.Errorf("%s: %s", node.Name, describeFlags(one))
		}
	}
	for _, args := range []string{"", "-v", "nothing", "--help", "run --help", "run -h",
		"run -vh x.md", "--help run"} {
		g := cli.GrammarFor(reflect.TypeFor[commandLine](), strings.Fields(args))
		if reflect.TypeOf(g) != reflect.TypeFor[*commandLine]() {
			t.Errorf("%q: %T", args, g)
		}
	}
}

func grammarNodes(t *testing.T, grammar any) *kong.Node {
	t.Helper()
	parser, _, err := cli.NewParser(grammar, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model.Node
}

func describe(n *kong.Node) string {
	text := n.Name + " " + n.Help + " " + n.Detail + describeFlags(n)
	for _, p := range n.Positional {
		text += "\n" + p.Summary() + " " + p.Help
	}
	for _, child := range n.Children {
		text += "\n" + describe(child)
	}
	return text
}

func describeFlags(n *kong.Node) (text string) {
	for _, f := range n.Flags {
		text += "\n" + f.String() + " " + f.Help + " " + f.Default
	}
	return text
}
