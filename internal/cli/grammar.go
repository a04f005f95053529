package cli

import (
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// GrammarFor returns a command line for kong, as a pointer to whole or to a struct that has only
// one of its commands: kong takes 4 ms to read all of them, and most runs of turn need one. If help
// may be printed, or no command is named, it returns the whole command line.
func GrammarFor(whole reflect.Type, args []string) any {
	i := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if i < 0 || args[i] == "help" || args[i] == "completion" || asksForHelp(args) {
		return reflect.New(whole).Interface()
	}
	var fields []reflect.StructField
	found := false
	for f := range whole.Fields() {
		if _, command := f.Tag.Lookup("cmd"); command {
			if commandName(f) != args[i] {
				continue
			}
			found = true
		}
		fields = append(fields, reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag})
	}
	if !found {
		return reflect.New(whole).Interface()
	}
	return reflect.New(reflect.StructOf(fields)).Interface()
}

// asksForHelp reports whether kong may interpret one of the arguments as --help.
func asksForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		short := strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--")
		return strings.HasPrefix(arg, "--h") || short && strings.Contains(arg, "h")
	})
}

// commandName returns the name of a command.
func commandName(f reflect.StructField) string {
	if name := f.Tag.Get("name"); name != "" {
		return name
	}
	return strings.ToLower(f.Name)
}

// verbosity is the number of -v flags.
func verbosity(ctx *kong.Context) int {
	for _, f := range ctx.Flags() {
		if f.Name == "verbose" {
			n, _ := ctx.FlagValue(f).(int)
			return n
		}
	}
	return 0
}
