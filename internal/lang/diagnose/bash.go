package diagnose

import (
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

var (
	bashLine    = lazyregexp.New(`^(.{1,255}?): (-c: )?line (\d+): (.*)$`)
	bashHeredoc = lazyregexp.New(
		"^warning: here-document at line (\\d+) delimited by end-of-file \\(wanted `(.*)'\\)$")
	bashToken = lazyregexp.New(
		"near unexpected token `(.*)'$|matching `(.*)'$|\\(error token is \"(.*)\"\\)$")
	dashLine  = lazyregexp.New(`^(.{1,255}?): (\d+): (.*)$`)
	dashToken = lazyregexp.New(
		`^Syntax error: "(.*)" unexpected|can't cd to (.*)$|cannot (?:open|create) (.*): |^(?:.*: )?([^:]+): (?:not found|parameter not set|Permission denied)$`)
)

// scanBash parses a message of bash: "NAME: line N: message", where NAME is the script's path as
// given to bash, or bash's own name for code from -c and from standard input (Bash Reference
// Manual, and its error.c).
func scanBash(c *search, ls []string, i int) (*report, int) {
	m := bashLine.FindStringSubmatch(ls[i])
	if m == nil {
		return nil, 0
	}
	f, ok := c.shellFrame(m[1], m[2] != "")
	if !ok {
		return nil, 0
	}
	f.line, f.mark = number(m[3]), -1
	r := &report{tool: "bash", message: m[4], whole: m[1] == "environment"}
	next := i + 1
	if w := bashHeredoc.FindStringSubmatch(m[4]); w != nil {
		f.line, f.words, r.rank = number(w[1]), []string{w[2]}, 1
	} else {
		f.words = bashWords(m[4])
	}
	if strings.HasPrefix(m[4], "syntax error") || strings.HasPrefix(m[4], "unexpected EOF") {
		prefix := m[1] + ": " + m[2] + "line "
		if rest, ok := strings.CutPrefix(at(ls, next), prefix); ok {
			_, text, _ := strings.Cut(rest, ": ")
			if strings.HasPrefix(text, "`") && strings.HasSuffix(text, "'") && len(text) > 1 {
				f.quote = strings.TrimSpace(text[1 : len(text)-1])
				next++
			} else if strings.HasPrefix(text, "syntax error: unexpected end of file") {
				next++ // before 5.2: the first message contains the beginning
			}
		}
	}
	r.frames = []frame{f}
	return r, next
}

// scanDash parses a message of dash, Debian's sh: "NAME: N: message".
func scanDash(c *search, ls []string, i int) (*report, int) {
	m := dashLine.FindStringSubmatch(ls[i])
	if m == nil {
		return nil, 0
	}
	f, ok := c.shellFrame(m[1], false)
	if !ok || (f.from == file && !strings.HasSuffix(m[1], ".sh")) || path.Base(m[1]) == "bash" {
		return nil, 0
	}
	f.line, f.mark = number(m[2]), -1
	if w := dashToken.FindStringSubmatch(m[3]); w != nil {
		f.words = []string{w[1], w[2], w[3], "$" + w[4], "${" + w[4], w[4]}
	}
	return &report{tool: "sh", message: m[3], frames: []frame{f}}, i + 1
}

// shellFrame returns the code that a shell's name refers to.
func (c *search) shellFrame(name string, argumentOnly bool) (frame, bool) {
	for i, s := range c.d.steps[:c.step+1] {
		if s.Script != nil && s.Path != "" &&
			(s.Path == name || (!path.IsAbs(name) && path.Base(s.Path) == path.Clean(name) &&
				!c.hasFile(name))) {
			return frame{from: script, step: i}, true
		}
	}
	switch base := path.Base(name); {
	case argumentOnly:
		return frame{from: argument}, true
	case base == "bash" || base == "sh" || base == "dash":
		return frame{from: code}, true
	case name == "environment": // a function that an earlier step exported
		return frame{from: nowhere}, true
	}
	return frame{from: file, name: name}, c.hasFile(name)
}

// bashWords returns the words that a message of bash refers to, most likely first.
func bashWords(message string) []string {
	if m := bashToken.FindStringSubmatch(message); m != nil {
		return []string{strings.TrimSpace(m[1] + m[2] + m[3])}
	}
	parts := strings.Split(message, ": ")
	if len(parts) > 8 {
		parts = parts[:8]
	}
	words := slices.Clone(parts[:len(parts)-1])
	slices.Reverse(words)
	if n := len(words); n > 0 &&
		(strings.HasSuffix(message, "unbound variable") || strings.HasSuffix(message, "not set")) {
		words = append([]string{"$" + words[0], "${" + words[0]}, words...)
	}
	return words
}

// locateScript returns a position in a step's own script: the word that the message refers to, in
// the failing command's part of the line; otherwise the command.
func (c *search) locateScript(f frame) Frame {
	src := c.d.steps[f.step].Script.Source
	x := c.d.indexes[f.step]
	from, to, ok := x.line(0, len(src), f.line)
	if !ok {
		from, to, _ = x.line(0, len(src), x.lines())
	}
	whole := Frame{Step: f.step, Span: c.d.span(f.step, from, to)}
	areas := [][2]int{{from, to}}
	if f.step == c.step && c.command >= 0 {
		cmd := c.clip(c.step, c.script.Commands[c.command].Span)
		if cmd.Start < to && from < cmd.End {
			areas = [][2]int{{max(from, cmd.Start), min(to, cmd.End)}, {from, to},
				{cmd.Start, min(cmd.End, cmd.Start+maxLine)}}
		}
	}
	if cmd, ok := c.covering(f.step, from, to); ok {
		areas = append(areas, [2]int{cmd.Start, min(cmd.End, cmd.Start+maxLine)})
	}
	for _, a := range areas {
		area := string(src[a[0]:min(a[1], a[0]+maxSearch)])
		for _, w := range f.words {
			if at := findWord(area, w); at >= 0 {
				return Frame{Step: f.step, Span: c.d.span(f.step, a[0]+at, a[0]+at+len(w))}
			}
		}
	}
	if cmd, ok := c.starting(f); ok {
		return Frame{Step: f.step, Span: cmd}
	}
	if cmd, ok := c.simpleOn(f.step, from, to); ok {
		return Frame{Step: f.step, Span: cmd}
	}
	start, end := partOf(string(src[from:min(to, from+maxSearch)]), f.quote, f, true, false)
	if from+start >= from+end && to > from {
		return whole
	}
	return Frame{Step: f.step, Span: c.d.span(f.step, from+start, from+end)}
}

// covering returns the first simple command that began on an earlier line and continues on this
// line: bash reports the line on which it has read a command's end.
func (c *search) covering(step, from, to int) (syntax.Span, bool) {
	best := -1
	for _, i := range c.d.indexes[step].ending(from, to) {
		if cmd := &c.d.steps[step].Script.Commands[i]; cmd.Span.Start < from &&
			(best < 0 || i < best) {
			best = i
		}
	}
	if best < 0 {
		return syntax.Span{}, false
	}
	return c.clip(step, c.d.steps[step].Script.Commands[best].Span), true
}

// starting returns the name of the only command that starts the program of a message: within $(…)
// bash 5.2 counts lines that do not exist.
func (c *search) starting(f frame) (syntax.Span, bool) {
	if len(f.words) == 0 || f.words[0] == "" {
		return syntax.Span{}, false
	}
	found := c.only(onlyKey{f.step, -1, f.words[0]}, c.d.indexes[f.step].programs(f.words[0]),
		func(*syntax.Command) bool { return true })
	if found < 0 {
		return syntax.Span{}, false
	}
	cmd := c.clip(f.step, c.d.steps[f.step].Script.Commands[found].Span)
	at := findWord(string(c.d.steps[f.step].Script.Source[cmd.Start:cmd.End]), f.words[0])
	if at < 0 {
		return cmd, true
	}
	return c.d.span(f.step, cmd.Start+at, cmd.Start+at+len(f.words[0])), true
}

// simpleOn returns the only simple command that begins on a line, preferably of the failing
// command: its part on the line.
func (c *search) simpleOn(step, from, to int) (syntax.Span, bool) {
	found := c.only(onlyKey{step, from, ""}, c.d.indexes[step].beginning(from, to),
		func(cmd *syntax.Command) bool { return cmd.Kind == syntax.KindSimple })
	if found < 0 {
		return syntax.Span{}, false
	}
	span := c.d.steps[step].Script.Commands[found].Span
	return c.d.span(step, span.Start, min(span.End, to)), true
}

// An onlyKey identifies a list of commands: those of a line that begins at a byte, or those that
// start a program.
type onlyKey struct {
	step, from int
	program    string
}

// only returns the only command of the list, of the failing command if the list is of its step; -1
// if there is none or more than one. It walks a list once.
func (c *search) only(key onlyKey, list []int, is func(*syntax.Command) bool) int {
	found, known := c.onlys[key]
	if known {
		return found
	}
	found = -1
	for _, i := range list {
		if (key.step == c.step && !c.inside[i]) || !is(&c.d.steps[key.step].Script.Commands[i]) {
			continue
		}
		if found >= 0 {
			found = -1
			break
		}
		found = i
	}
	c.onlys[key] = found
	return found
}
