// Package transcript writes the commands that were run in a sandbox as a document: each command is a
// step, which does the same when the document is run.
package transcript

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/sandboxes/performed"
)

// maxSize bounds a document in bytes. Further commands are counted.
const maxSize = document.MaxSource / 2

// Options describe the sandbox of the commands.
type Options struct {
	Title    string // of the document
	Image    string // the image that the document names; empty: none
	User     string // the user of steps; empty: root
	Unlisted int64  // commands after those that are listed
	// Missing says what else is missing; empty: nothing.
	Missing string
}

// A Step is a command that is a step of a document.
type Step struct {
	performed.Command
	Background bool // the step only starts it
	Timeout    bool // the step has a time limit, because a client killed it
}

// Write returns a document with a step for each command, and the commands of its steps, which are
// the first of all. The document parses.
func Write(all []performed.Command, o Options) (text []byte, steps []Step) {
	var b bytes.Buffer
	if o.Image != "" {
		fmt.Fprintf(&b, "---\nimage: %q\n---\n\n", o.Image)
	}
	fmt.Fprintf(&b, "# %s\n\n", plain(o.Title))
	w := writer{o: o, all: all, names: make(map[string]bool)}
	for i := range all {
		s, step := w.step(i)
		if b.Len()+len(s) > maxSize || i == document.MaxSteps {
			o.Unlisted += int64(len(all) - i)
			break
		}
		b.WriteString(s)
		steps = append(steps, step)
	}
	switch {
	case len(all) == 0 && o.Unlisted == 0:
		b.WriteString("No command was run; files were changed from outside.\n")
	case o.Unlisted > 0:
		fmt.Fprintf(&b, "Further commands are not listed: %d.\n", o.Unlisted)
	}
	if o.Missing != "" {
		fmt.Fprintf(&b, "\n%s\n", plain(o.Missing))
	}
	return b.Bytes(), steps
}

// plain returns a line of text without markup.
func plain(s string) string {
	return cmp.Or(strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune(" .,:;()-/@", r) {
			return r
		}
		return '-'
	}, s), " -"), "Sandbox")
}

// A writer writes the steps of a document.
type writer struct {
	o     Options
	all   []performed.Command
	names map[string]bool
}

var (
	simplePath = lazyregexp.New(`^/[A-Za-z0-9/._+@-]*$`)
	stepName   = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
)

// step returns the step of the command at i, with an empty line after it.
func (w *writer) step(i int) (string, Step) {
	p := &w.all[i]
	out := Step{Command: *p}
	background := w.background(i)
	script, skip := w.script(p, background)
	language := "bash"
	var attrs []string
	if p.Language == "sh" {
		language = "sh"
	}
	if stepName.MatchString(p.Name) && !strings.HasPrefix(p.Name, "step") && !w.names[p.Name] {
		w.names[p.Name] = true
		attrs = append(attrs, "name="+p.Name)
	}
	if simplePath.MatchString(p.Cwd) {
		attrs = append(attrs, "cwd="+p.Cwd)
	} else if p.Cwd != "" {
		and := " &&\n"
		if p.Language != "" || p.Cut {
			and = "\n"
		}
		script = "cd -- " + Quote(p.Cwd) + and + script
	}
	if p.Exit != nil && p.Exit.Killed && !background && skip == "" {
		out.Timeout = true
		attrs = append(attrs, "timeout="+max(time.Second, p.Took.Round(time.Second)).String())
	}
	out.Background = background && skip == ""
	if !out.Background && (p.Exit == nil || p.Exit.ExitCode != 0) {
		attrs = append(attrs, "continue-on-error")
	}
	if p.Language != "" && p.Exit != nil && p.Exit.ExitCode == 2 {
		attrs = append(attrs, "unparsed") // it may be bash's error about the step's syntax
	}
	var b strings.Builder
	if skip != "" {
		attrs = append(attrs, "skip")
		fmt.Fprintf(&b, "The next step is not repeated: %s.\n\n", skip)
	}
	fence := strings.Repeat("`", max(3, longestRun(script)+1))
	fmt.Fprintf(&b, "%s%s\n%s\n%s\n\n", fence, strings.Join(append([]string{language}, attrs...), " "),
		strings.TrimSuffix(script, "\n"), fence)
	return b.String(), out
}

// longestRun returns the length of the longest run of backquotes in s.
func longestRun(s string) (longest int) {
	run := 0
	for i := range len(s) {
		if run++; s[i] != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// background reports whether the command at i still ran when the next one started, or at the end.
func (w *writer) background(i int) bool {
	p := &w.all[i]
	if p.Language != "" {
		return false // steps of a shell run one after another
	}
	if !p.Ended {
		return true
	}
	return i+1 < len(w.all) && w.all[i+1].Started.Before(p.Started.Add(p.Took))
}

// script returns the text of a step, and why it is not repeated; empty: it is.
func (w *writer) script(p *performed.Command, background bool) (script, skip string) {
	switch {
	case p.Cut:
		return "# " + comment(cmp.Or(p.Script, strings.Join(p.Argv, " "))), "it is too long to be kept"
	case p.Language != "":
		return shellScript(p.Script, p.Language), ""
	case p.InputSize > int64(len(p.Input)):
		skip = fmt.Sprintf("only the first %d of %d bytes of its input are kept", len(p.Input),
			p.InputSize)
	case p.Terminal:
		skip = "it ran on a terminal, and what was typed is not kept"
	}
	words, ok := w.asUser(p)
	if !ok {
		skip = "its user differs from that of steps"
	}
	script = simpleCommand(words, p.Env)
	before, after, doc := input(p.Input)
	script = before + script + after
	if background {
		if before != "" {
			script = "{ " + script + "; }"
		}
		script += " &"
	}
	return script + doc, skip
}

// asUser returns the words of the command, with those that change its user. ok is false if a step
// cannot do so.
func (w *writer) asUser(p *performed.Command) (words []string, ok bool) {
	user, group, _ := strings.Cut(p.User, ":")
	root := func(u string) bool { return u == "" || u == "root" || u == "0" }
	switch {
	case p.User == w.o.User, root(user) && root(group) && root(w.o.User):
		return p.Argv, true
	case !root(w.o.User):
		return p.Argv, false
	}
	words = []string{"runuser", "-u", user}
	if group != "" {
		words = append(words, "-g", group)
	}
	return slices.Concat(words, []string{"--"}, p.Argv), true
}
