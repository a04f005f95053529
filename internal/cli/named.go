package cli

import (
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
)

// program is what the command is called in texts, and plugin if kubectl runs it as one of its plug-ins,
// for which it has the name pluginFile.
const (
	program    = "turn"
	plugin     = "kubectl turn"
	pluginFile = "kubectl-turn"
)

// calledBy returns the name of the command for a process whose first argument is arg0.
func calledBy(arg0 string) string {
	if strings.TrimSuffix(filepath.Base(arg0), ".exe") == pluginFile {
		return plugin
	}
	return program
}

// A naming replaces the name of the command in texts, which are written for turn. That of turn itself
// is nil, and changes nothing.
type naming struct {
	name  string
	words *regexp.Regexp // turn and one of its commands
}

// namingFor returns the naming for name and the commands in whole.
func namingFor(name string, whole reflect.Type) *naming {
	if name == program || name == "" {
		return nil
	}
	words := []string{"COMMAND", "--help"}
	for f := range whole.Fields() {
		if _, command := f.Tag.Lookup("cmd"); command {
			words = append(words, regexp.QuoteMeta(commandName(f))+`\b`)
		}
	}
	return &naming{name, regexp.MustCompile(`(^|[\s"'(\x60])turn( (?:` + strings.Join(words, "|") + `))`)}
}

// String returns what the command is called.
func (n *naming) String() string {
	if n == nil {
		return program
	}
	return n.name
}

// in returns text with the command's name.
func (n *naming) in(text string) string {
	if n == nil {
		return text
	}
	return n.words.ReplaceAllString(text, "${1}"+n.name+"${2}")
}

// kubectlFlags are flags of kubectl itself, in an error that refuses one.
var kubectlFlags = regexp.MustCompile(`unknown flag (--(namespace|context|cluster|user|kubeconfig|server)|-n|-s)\b`)

// hint returns the hint of an error. A plug-in's user may mean a flag of kubectl.
func (n *naming) hint(err error) string {
	if n != nil && kubectlFlags.MatchString(err.Error()) {
		return "flags of kubectl select nothing here: select the server with TURN_HOST or turn host use; its token says " +
			"which tenant, and so which namespace, you act in"
	}
	return turnstone.HintOf(err)
}

// help replaces the name in the texts of help.
func (n *naming) help(k *kong.Kong) error {
	if n == nil {
		return nil
	}
	return kong.Visit(k.Model, func(v kong.Visitable, next kong.Next) error {
		switch v := v.(type) {
		case *kong.Application:
			v.Help, v.Detail = n.in(v.Help), n.in(v.Detail)
		case *kong.Node:
			v.Help, v.Detail = n.in(v.Help), n.in(v.Detail)
		case *kong.Flag:
			v.Help = n.in(v.Help)
		}
		return next(nil)
	})
}
