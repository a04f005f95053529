package cli

import (
	"strings"

	"github.com/alecthomas/kong"
)

// ShortRefs rewrites arguments that name the current session and that kong would interpret as
// flags: "-@3" becomes "@3", and "-~1" and "-:/path" refer to the branch main. It does not change
// the values of flags, arguments after "--", and the arguments of commands that run programs.
func ShortRefs(root *kong.Node, args []string) []string {
	out := make([]string, 0, len(args))
	node, value := root, false // value: the argument is the value of the flag before it
	for i, arg := range args {
		switch {
		case arg == "--" || passesOn(node):
			return append(out, args[i:]...)
		case value:
			value = false
		case strings.HasPrefix(arg, "-@"):
			arg = arg[1:]
		case strings.HasPrefix(arg, "-~"), strings.HasPrefix(arg, "-:"):
			arg = "@main" + arg[1:]
		case len(arg) > 1 && arg[0] == '-':
			value = wantsValue(node, arg)
		default:
			for _, child := range node.Children {
				if child.Name == arg {
					node = child
					break
				}
			}
		}
		out = append(out, arg)
	}
	return out
}

// passesOn reports whether the arguments of a command belong to a program.
func passesOn(node *kong.Node) bool {
	for _, p := range node.Positional {
		if p.Passthrough {
			return true
		}
	}
	return false
}

// wantsValue reports whether the argument after a flag is its value.
func wantsValue(node *kong.Node, arg string) bool {
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if arg == "--"+f.Name || f.Short != 0 && arg[1] != '-' &&
				strings.HasSuffix(arg, string(f.Short)) {
				return takesValue(f)
			}
		}
	}
	return false
}

// takesValue reports whether the flag's next word is its value.
func takesValue(f *kong.Flag) bool { return !f.IsBool() && !f.IsCounter() }
