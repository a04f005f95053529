package diagnose

import (
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

var (
	jqCompile = lazyregexp.New(
		`^jq: error: (.*?) at <(?:top-level|unknown)>(?:, line (\d+)(?:, column (\d+))?)?:?$`)
	jqRun   = lazyregexp.New(`^jq: error \(at [^)]*\)(?: \(not a string\))?:? (.*)$`)
	jqInput = lazyregexp.New(
		`^(?:jq: )?(?:parse error|error \(at [^)]*\)): (.*) at line (\d+), column (\d+)$`)
	jqName = lazyregexp.New(`^([\w:$]+)(?:/\d+)? is not defined`)

	psqlError = lazyregexp.New(`^(?:psql:(.{1,255}?):(\d+): )?(ERROR|FATAL|PANIC|WARNING|error): +(.*)$`)
	psqlLine  = lazyregexp.New(`^LINE (\d+): `)

	sqliteError = lazyregexp.New(
		`^(?:Parse error|Runtime error|Error)(?::? (?:near|in) line (\d+))?(?::? (?:in prepare|stepping),?)?:? (.*)$`)
	sqliteNear = lazyregexp.New(
		`near "(.*)": |no such (?:table|column|function|collation sequence): (\S+)|unrecognized token: "(.*)"|table (\S+) |\bon (\S+)$`)

	awkLine = lazyregexp.New(
		`^(?:\S*/)?(gawk|mawk|nawk|awk|original-awk|busybox): (?:(.{1,255}?): ?)??(?:source )?(?:line )?(\d+): ?(.*)$`)
	awkPlain = lazyregexp.New(
		`^(?:\S*/)?(?:gawk|mawk|nawk|awk|original-awk): (?:fatal: |error: |run time error: )?(.*)$`)

	awkNear  = lazyregexp.New(`near (\S+)$`)
	perlName = lazyregexp.New(`"([$@%&]?[\w:]+)"`)
	perlAt   = lazyregexp.New(`^(.*?) at (\S{1,255}) line (\d+)(, near "(.*?)"?|, at EOF|, <.*)?\.?$`)
	rubyLine = lazyregexp.New("^([^\\s:][^:]{0,255}):(\\d+): ?(?:in [`'][^']*': )?(.*)$")
	rubyFrom = lazyregexp.New(`^\t(?:\s*\d+: )?from ([^\s:][^:]{0,255}):(\d+):`)
)

// scanJQ parses jq's message about its program, with the line below (1.6 shows the line, 1.7 and
// later also the column), about a value, or about its input.
func scanJQ(_ *search, ls []string, i int) (*report, int) {
	line := ls[i]
	if !strings.HasPrefix(line, "jq: ") && !strings.HasPrefix(line, "parse error: ") {
		return nil, 0
	}
	if m := jqCompile.FindStringSubmatch(line); m != nil {
		f := frame{from: argument, line: max(1, number(m[2])), column: number(m[3]), mark: -1}
		if next := at(ls, i+1); next != "" && !strings.HasPrefix(next, "jq: ") {
			f.quoteOf(next, at(ls, i+2))
			i++
		}
		if w := jqName.FindStringSubmatch(m[1]); w != nil {
			f.words = []string{w[1]}
		}
		return &report{tool: "jq", message: m[1], frames: []frame{f},
			whole: true, code: true}, i + 1
	}
	if m := jqInput.FindStringSubmatch(line); m != nil {
		f := frame{from: data, line: number(m[2]), mark: -1}
		return &report{tool: "jq", message: m[1], frames: []frame{f},
			whole: true, code: true}, i + 1
	}
	if m := jqRun.FindStringSubmatch(line); m != nil {
		return &report{tool: "jq", message: m[1], whole: true, code: true}, i + 1
	}
	return nil, 0
}

// scanPsql parses PostgreSQL's message with its LINE and caret. LINE counts from the statement's
// beginning; if there can be several statements, the quoted text determines the position.
func scanPsql(c *search, ls []string, i int) (*report, int) {
	m := psqlError.FindStringSubmatch(ls[i])
	if m == nil || (m[1] == "" && !c.runs("psql")) {
		return nil, 0
	}
	r := &report{tool: "psql", message: m[4], whole: true, code: true}
	if m[3] == "WARNING" {
		r.rank = 1
	}
	f := frame{from: code, limit: number(m[2]), mark: -1}
	if m[1] != "" && m[1] != "<stdin>" {
		f.from, f.name = file, m[1]
	}
	head := psqlLine.FindStringSubmatch(at(ls, i+1))
	if head == nil {
		f.line = f.limit // the end of the statement
		if f.line > 0 {
			r.frames = []frame{f}
		}
		return r, i + 1
	}
	// The prefix has as many columns in the line as there are blanks above the caret.
	f.quoteOf(at(ls, i+1)[len(head[0]):], at(ls, i+2)[min(len(head[0]), len(at(ls, i+2))):])
	f.trimDots()
	if f.mark >= 0 {
		f.markEnd = f.mark + wordLength(f.quote[min(f.mark, len(f.quote)):])
	}
	r.frames = []frame{f}
	return r, i + 3
}

// trimDots removes the dots by which psql marks an incomplete line.
func (f *frame) trimDots() {
	if rest, ok := strings.CutPrefix(f.quote, "..."); ok {
		f.quote, f.mark = rest, max(f.mark-3, -1)
	}
	f.quote = strings.TrimSuffix(f.quote, "...")
}

// wordLength returns the length of the word at the beginning of s, at least 1.
func wordLength(s string) int {
	n := 0
	for n < len(s) && isWordByte(s[n]) {
		n++
	}
	return max(n, 1)
}

// scanSQLite parses a message of the sqlite3 shell. It shows the statement with its blanks joined,
// and its line is the line on which the statement begins.
func scanSQLite(c *search, ls []string, i int) (*report, int) {
	m := sqliteError.FindStringSubmatch(ls[i])
	if m == nil || !c.runs("sqlite3", "sqlite") {
		return nil, 0
	}
	r := &report{tool: "sqlite3", message: m[2], whole: true, code: true}
	f := frame{from: input, line: number(m[1]), loose: true, mark: -1}
	if f.line == 0 {
		f.from, f.line = argument, 1
	}
	if w := sqliteNear.FindStringSubmatch(m[2]); w != nil {
		f.words = w[1:]
	}
	next := i + 1
	if quote, carets := at(ls, i+1), at(ls, i+2); strings.HasPrefix(quote, "  ") &&
		strings.Contains(carets, "error here") {
		column := strings.IndexByte(carets, '^')
		f.quote = strings.TrimSpace(quote)
		if column >= 2 && isASCII(quote) {
			f.mark = column - (len(quote) - len(strings.TrimLeft(quote, " ")))
		}
		next = i + 3
	}
	if f.mark >= 0 || len(f.words) > 0 || m[1] != "" {
		r.frames = []frame{f}
	}
	return r, next
}

// scanAwk parses a message of mawk ("mawk: line 2: …"), or of gawk and busybox ("awk: cmd. line:2:
// …", with the source line and a caret below), about code from the command line or from a file.
func scanAwk(c *search, ls []string, i int) (*report, int) {
	m := awkLine.FindStringSubmatch(ls[i])
	if m == nil {
		p := awkPlain.FindStringSubmatch(ls[i])
		if p == nil {
			return nil, 0
		}
		return &report{tool: "awk", message: p[1], whole: true, code: true, rank: 1}, i + 1
	}
	f := frame{from: argument, line: number(m[3]), mark: -1}
	if name := strings.TrimSpace(m[2]); name != "" && name != "cmd. line" &&
		name != "syntax error at" {
		f.from, f.name = file, name
		if !c.hasFile(name) {
			return nil, 0
		}
	}
	r := &report{tool: "awk", message: strings.TrimPrefix(m[4], "error: "),
		whole: f.from == argument, code: true}
	next := i + 1
	prefix := ls[i][:len(ls[i])-len(m[4])]
	if below, ok := strings.CutPrefix(at(ls, i+1), prefix); ok {
		if column := strings.IndexByte(below, '^'); column >= 0 &&
			strings.TrimSpace(below[:column]) == "" {
			f.quoteOf(m[4], below[:column+1])
			r.message = strings.TrimLeft(below[column:], "^ ")
			next++
		}
	}
	if strings.HasPrefix(r.message, "warning: ") {
		r.rank = 1
	}
	if w := awkNear.FindStringSubmatch(r.message); w != nil {
		f.words = w[1:]
	}
	r.frames = []frame{f}
	return r, next
}

// scanPerl parses "message at FILE line N." (perldoc perldiag).
func scanPerl(c *search, ls []string, i int) (*report, int) {
	if !strings.Contains(ls[i], " line ") {
		return nil, 0
	}
	m := perlAt.FindStringSubmatch(ls[i])
	if m == nil {
		return nil, 0
	}
	f := frame{from: file, name: m[2], line: number(m[3]), mark: -1}
	switch {
	case m[2] == "-e":
		f.from = argument
	case m[2] == "-":
		f.from = input
	case !c.hasFile(m[2]):
		return nil, 0
	}
	if near := strings.TrimSpace(m[5]); near != "" {
		f.words = []string{near}
	} else if w := perlName.FindStringSubmatch(m[1]); w != nil {
		f.words = w[1:]
	}
	r := &report{tool: "perl", message: m[1], frames: []frame{f}}
	if !strings.HasPrefix(m[4], ", <") {
		r.message += m[4]
	}
	if strings.HasPrefix(m[1], "BEGIN failed--") {
		r.rank = 1
	}
	return r, i + 1
}

// scanRuby parses an error of ruby: the innermost position with the message, the source line (since
// 3.1), and the call stack.
func scanRuby(c *search, ls []string, i int) (*report, int) {
	m := rubyLine.FindStringSubmatch(ls[i])
	if m == nil || !c.isRuby(m[1]) {
		return nil, 0
	}
	f := frame{from: rubySource(m[1]), name: m[1], line: number(m[2]), mark: -1}
	r := &report{tool: "ruby", message: m[3]}
	i++
	if strings.Contains(at(ls, i+1), "^") {
		f.quoteOf(at(ls, i), at(ls, i+1)) // a syntax error
		i += 2
	} else if at(ls, i) == "" && strings.Contains(at(ls, i+2), "^") {
		f.quoteOf(at(ls, i+1), at(ls, i+2))
		i += 3
	}
	r.frames = []frame{f}
	for ; i < len(ls); i++ {
		if m := rubyFrom.FindStringSubmatch(ls[i]); m != nil {
			r.frames = append(r.frames, frame{from: rubySource(m[1]), name: m[1],
				line: number(m[2]), mark: -1})
		} else if !strings.HasPrefix(ls[i], "\t") {
			break
		}
	}
	slices.Reverse(r.frames)
	return r, i
}

func (c *search) isRuby(name string) bool {
	switch rubySource(name) {
	case argument, input:
		return c.runs("ruby")
	}
	return strings.HasSuffix(name, ".rb") || (c.runs("ruby") && c.hasFile(name))
}

func rubySource(name string) source {
	switch name {
	case "-e":
		return argument
	case "-":
		return input
	}
	return file
}
