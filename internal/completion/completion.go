// Package completion writes the scripts that complete a command line of kong in a shell.
package completion

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Script returns the script that completes the command line root in a shell: bash, zsh or
// fish.
func Script(shell string, root *kong.Node) string {
	commands := completions(root, "")
	var b strings.Builder
	switch shell {
	case "fish":
		fishCompletion(&b, commands)
	case "zsh":
		b.WriteString("autoload -U +X bashcompinit && bashcompinit\n")
		bashCompletion(&b, commands)
	default:
		bashCompletion(&b, commands)
	}
	return b.String()
}

// A completion describes the words that may follow one command.
type completion struct {
	path  string // words of the command after "turn"
	words []word // its subcommands
	flags []*kong.Flag
	files bool // its arguments are files
	// images and commands mean that its arguments are templates, or commands.
	images, commands bool
	// sandboxes means that its arguments are sandboxes, copies that they are local paths or paths
	// in a sandbox.
	sandboxes, copies bool
	// sessions means that its arguments are sessions, refs that they are turns.
	sessions, refs bool
	homes          bool // its arguments are homes
}

type word struct{ name, help string }

// completions walks the tree of commands.
func completions(node *kong.Node, path string) []completion {
	c := completion{path: path}
	for _, group := range node.AllFlags(true) {
		c.flags = append(c.flags, group...)
	}
	for _, p := range node.Positional {
		takesFiles := slices.Contains([]string{"file", "cmd", "dir", "dest"}, p.Name)
		c.files = c.files || takesFiles || node.Name == "build"
		c.images = c.images || p.Name == "template"
		c.commands = c.commands || p.Name == "command"
		c.sandboxes = c.sandboxes || p.Name == "sandbox"
		c.copies = c.copies || p.Name == "src"
		c.sessions = c.sessions || p.Name == "session"
		c.homes = c.homes || p.Name == "home"
		c.refs = c.refs || p.Name == "ref" || p.Name == "from" || p.Name == "path"
		for _, v := range p.EnumSlice() {
			if v != "" {
				c.words = append(c.words, word{name: v})
			}
		}
	}
	var below []completion
	for _, child := range node.Children {
		if child.Hidden {
			continue
		}
		c.words = append(c.words, word{child.Name, child.Help})
		below = append(below, completions(child, strings.TrimSpace(path+" "+child.Name))...)
	}
	return append([]completion{c}, below...)
}

// listImages prints the names of the existing templates at the time of completion, for each of the
// shells.
const listImages = "turn template ls --names 2>/dev/null"

// listHomes prints the names of the existing homes.
const listHomes = "turn home ls --names 2>/dev/null"

// listSessions prints the names of the existing sessions, and "-" if there is a current session.
const listSessions = "turn complete-refs --sessions 2>/dev/null"

// listRefs prints the completions of a reference, which a shell has in a variable: sessions, and
// turns of the current session; after SESSION@ its branches and tags.
const (
	bashRefs = "turn complete-refs -- \"$ref\" 2>/dev/null"
	fishRefs = "turn complete-refs -- (commandline -ct) 2>/dev/null"
)

// listSandboxes prints the existing sandboxes, by name if they have one.
const listSandboxes = `turn sandbox ls 2>/dev/null | awk 'NR > 1 { print $2 == "-" ? $1 : $2 }'`

// listPlaces prints the start of a path in each of them, for turn sandbox cp.
const listPlaces = `turn sandbox ls 2>/dev/null | awk 'NR > 1 { print ($2 == "-" ? $1 : $2) ":" }'`

// list returns the command that prints the possible arguments of c, if there is one.
func (c *completion) list() string {
	switch {
	case c.images:
		return listImages
	case c.sandboxes:
		return listSandboxes
	case c.copies:
		return listPlaces
	case c.refs:
		return bashRefs
	case c.sessions:
		return listSessions
	case c.homes:
		return listHomes
	}
	return ""
}

// listed returns the command that prints the possible values of a flag, if there is one.
func listed(f *kong.Flag) string {
	switch f.Name {
	case "image":
		return listImages
	case "session":
		return listSessions
	case "home":
		return listHomes
	}
	return ""
}

// flagWords returns the forms of a flag, long and short.
func flagWords(f *kong.Flag) []string {
	w := []string{"--" + f.Name}
	if f.Short != 0 {
		w = append(w, "-"+string(f.Short))
	}
	return w
}

// values returns the possible values of a flag: a few words, or files. (Templates are listed at the
// time of completion.)
func values(f *kong.Flag) []string {
	switch f.Name {
	case "network":
		return []string{"on", "off"}
	}
	var v []string
	for _, e := range f.EnumSlice() {
		if e != "" {
			v = append(v, e)
		}
	}
	return v
}

// takesValue reports whether the flag's next word is its value.
func takesValue(f *kong.Flag) bool { return !f.IsBool() && !f.IsCounter() }

func takesFile(f *kong.Flag) bool {
	return f.Name == "output" || f.Name == "add" || f.Name == "get"
}

// bashCompletion writes one function that finds the command by the words before the cursor. It also
// serves zsh, through bashcompinit.
func bashCompletion(b *strings.Builder, all []completion) {
	b.WriteString("_turn() {\n" +
		"  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= word i\n" +
		// bash splits words at "@": ref is the whole reference.
		"  local ref=$cur before=${COMP_WORDS[COMP_CWORD-2]-}\n" +
		"  [[ $cur != @ || $COMP_CWORD -lt 2 ]] || ref=$prev@\n" +
		"  [[ $prev != @ ]] || ref=$before@$cur\n" +
		"  for ((i = 1; i < COMP_CWORD; i++)); do\n" +
		"    word=${COMP_WORDS[i]}\n" +
		"    case \"$path $word\" in\n")
	for _, c := range all {
		if c.path != "" {
			parent, name := "", c.path
			if i := strings.LastIndexByte(c.path, ' '); i >= 0 {
				parent, name = c.path[:i], c.path[i+1:]
			}
			fmt.Fprintf(b, "      %q) path=%q ;;\n", parent+" "+name, c.path)
		}
	}
	b.WriteString("    esac\n  done\n  COMPREPLY=()\n  case \"$path:$prev\" in\n")
	for _, c := range all {
		for _, f := range c.flags {
			if !takesValue(f) {
				continue
			}
			var patterns []string
			for _, w := range flagWords(f) {
				patterns = append(patterns, fmt.Sprintf("%q", c.path+":"+w))
			}
			reply := fmt.Sprintf("$(compgen -W %q -- \"$cur\")", strings.Join(values(f), " "))
			if list := listed(f); list != "" {
				reply = "$(compgen -W \"$(" + list + ")\" -- \"$cur\")"
			}
			if takesFile(f) {
				reply = "$(compgen -f -- \"$cur\")"
			}
			fmt.Fprintf(b, "    %s) COMPREPLY=(%s); return ;;\n", strings.Join(patterns, "|"),
				reply)
		}
	}
	b.WriteString("  esac\n  case \"$path\" in\n")
	for _, c := range all {
		var flags, names []string
		for _, f := range c.flags {
			flags = append(flags, flagWords(f)...)
		}
		for _, w := range c.words {
			names = append(names, w.name)
		}
		if c.commands {
			for _, w := range all[0].words {
				names = append(names, w.name)
			}
		}
		words := fmt.Sprintf("%q", strings.Join(names, " "))
		if list := c.list(); list != "" {
			words = "\"$(" + list + ")\""
		}
		files := ""
		if c.refs { // the part before the last "@" is already typed
			files = "; [[ $ref != *@* || $ref == \"$cur\" ]] || " +
				"COMPREPLY=($(compgen -W \"$(" + bashRefs + ")\" -- \"$ref\")) " +
				"COMPREPLY=(\"${COMPREPLY[@]#\"${ref%@*}@\"}\")"
		}
		if c.copies { // a path follows the colon
			files = "; [[ ${COMPREPLY[*]} != *: ]] || compopt -o nospace 2>/dev/null || true"
		}
		if c.files || c.copies {
			files += "; [[ $cur == -* ]] || COMPREPLY+=($(compgen -f -- \"$cur\"))"
		}
		fmt.Fprintf(b, "    %q) if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W %q -- \"$cur\")); "+
			"else COMPREPLY=($(compgen -W %s -- \"$cur\")); fi%s ;;\n",
			c.path, strings.Join(flags, " "), words, files)
	}
	b.WriteString("  esac\n}\ncomplete -o filenames -F _turn turn\n")
}

// fishCompletion writes one line for each subcommand and flag.
func fishCompletion(b *strings.Builder, all []completion) {
	b.WriteString("complete -c turn -f\n")
	for _, c := range all {
		when := fishCondition(c)
		for _, w := range c.words {
			fmt.Fprintf(b, "complete -c turn -n %s -a %s -d %s\n",
				fishQuote(when), fishQuote(w.name), fishQuote(w.help))
		}
		if c.files || c.copies {
			fmt.Fprintf(b, "complete -c turn -n %s -F\n", fishQuote(when))
		}
		if list := c.list(); list != "" {
			if c.refs {
				list = fishRefs
			}
			fmt.Fprintf(b, "complete -c turn -n %s -a %s\n",
				fishQuote(when), fishQuote("("+list+")"))
		}
		for _, f := range c.flags {
			fmt.Fprintf(b, "complete -c turn -n %s -l %s", fishQuote(when), f.Name)
			if f.Short != 0 {
				fmt.Fprintf(b, " -s %c", f.Short)
			}
			switch {
			case takesFile(f):
				b.WriteString(" -r -F")
			case listed(f) != "":
				fmt.Fprintf(b, " -x -a %s", fishQuote("("+listed(f)+")"))
			case takesValue(f):
				fmt.Fprintf(b, " -x -a %s", fishQuote(strings.Join(values(f), " ")))
			}
			fmt.Fprintf(b, " -d %s\n", fishQuote(f.Help))
		}
	}
}

// fishCondition is true if exactly the command c has been typed.
func fishCondition(c completion) string {
	if c.path == "" {
		return "__fish_use_subcommand"
	}
	var seen []string
	for _, w := range strings.Fields(c.path) {
		seen = append(seen, "__fish_seen_subcommand_from "+w)
	}
	when := strings.Join(seen, "; and ")
	if len(c.words) > 0 {
		var names []string
		for _, w := range c.words {
			names = append(names, w.name)
		}
		when += "; and not __fish_seen_subcommand_from " + strings.Join(names, " ")
	}
	return when
}

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
