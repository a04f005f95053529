package diagnose

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// A scanner tests whether a tool's message begins on line i. It returns the message, or nil, and
// the index of the line after it.
type scanner func(c *search, ls []string, i int) (r *report, next int)

// scanners are tried in this order: unmistakable messages first.
func scanners() []scanner {
	return []scanner{scanPython, scanNode, scanJQ, scanPsql, scanSQLite, scanAwk, scanBash,
		scanDash, scanRuby, scanPerl, scanPlace}
}

// scan returns the messages in ls, in order.
func scan(c *search, ls []string) []report {
	var reports []report
	all := scanners()
next:
	for i := 0; i < len(ls); {
		for _, s := range all {
			if r, next := s(c, ls, i); r != nil {
				reports = append(reports, *r)
				i = max(next, i+1)
				continue next
			}
		}
		i++
	}
	return reports
}

// ownWord returns the last line of the form "PROGRAM: message", where PROGRAM is run by the failing
// command: most programs use this form.
func ownWord(c *search, ls []string) (report, bool) {
	if c.command < 0 {
		return report{}, false
	}
	programs := map[string]bool{}
	for i, cmd := range c.script.Commands {
		if c.inside[i] && cmd.Program != "" {
			programs[path.Base(cmd.Program)] = true
		}
	}
	for _, line := range slices.Backward(ls) {
		name, message, ok := strings.Cut(line, ": ")
		if ok && programs[path.Base(name)] && message != "" {
			return report{tool: toolName(name), message: message, whole: true}, true
		}
	}
	return report{}, false
}

// number parses a line or column number. It returns 0 for other text, or a number that is too large
// for a script.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1<<30 {
		return 0
	}
	return n
}

// quoteOf sets the quotation of a frame from a line that a tool shows and the line below, if that
// line has carets. Both are unchanged, with the same indentation.
func (f *frame) quoteOf(line, carets string) {
	f.quote, f.mark, f.markEnd = strings.TrimSpace(line), -1, -1
	from, to, ok := caretRun(carets)
	if !ok {
		return
	}
	indent := len([]rune(line)) - len([]rune(strings.TrimLeft(line, " \t")))
	f.mark = byteColumn(f.quote, 1+from-indent)
	f.markEnd = byteColumn(f.quote, 1+to-indent)
	// Some tools count bytes, some characters, some columns, and some have changed.
	if !isASCII(f.quote[:f.markEnd]) {
		f.mark, f.markEnd = -1, -1
	}
}

// caretRun returns the columns, from 0, that a line of carets and tildes marks.
func caretRun(s string) (from, to int, ok bool) {
	if !strings.Contains(s, "^") || strings.Trim(s, " \t^~-") != "" {
		return 0, 0, false
	}
	from = strings.IndexAny(s, "^~-")
	return from, len(strings.TrimRight(s, " \t")), true
}

func at(ls []string, i int) string {
	if i < 0 || i >= len(ls) {
		return ""
	}
	return ls[i]
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// hasFile reports whether a script wrote a file with this name.
func (c *search) hasFile(name string) bool {
	has, ok := c.known[name]
	if !ok && len(c.known) < maxNames {
		has = len(c.files(name)) > 0
		c.known[name] = has
	}
	return has
}

// FILE:LINE:COLUMN: message, the form of compilers and many other programs.
var placeLine = lazyregexp.New(`^([^\s:][^:]{0,255}):(\d+):(?:(\d+):)? ?(.+)$`)

// scanPlace parses any program's message about a file that a script wrote.
func scanPlace(c *search, ls []string, i int) (*report, int) {
	m := placeLine.FindStringSubmatch(ls[i])
	if m == nil || !c.hasFile(m[1]) {
		return nil, 0
	}
	r := &report{message: m[4], tool: c.program()}
	if r.tool == "" {
		return nil, 0
	}
	if strings.Contains(m[4], "warning:") || strings.HasPrefix(m[4], "note:") {
		r.rank = 1
	}
	r.frames = []frame{{from: file, name: m[1], line: number(m[2]), column: number(m[3]), mark: -1}}
	return r, i + 1
}

var versioned = lazyregexp.New(`^(python|pypy|ruby|perl)[\d.]+$`)

// toolName returns the displayed name of a program.
func toolName(program string) string {
	name := oneLine(path.Base(program))
	if m := versioned.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	switch name {
	case "nodejs":
		return "node"
	case "gawk", "mawk", "nawk", "original-awk":
		return "awk"
	}
	return name
}

// program returns the name of the failing command's program.
func (c *search) program() string {
	for i, cmd := range c.script.Commands {
		if c.command >= 0 && c.inside[i] && cmd.Program != "" {
			return toolName(cmd.Program)
		}
	}
	return ""
}
