package diagnose

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// A region is a piece of code in a script, with its route to a program.
type region struct {
	step     int
	command  int
	from     source
	language string
	name     string // of a file, as the script names it
	path     string // of a file, as far as known
	start    int    // in the script, with end
	end      int
	verbatim bool
	tabs     bool // <<-: leading tabs of each line are removed
	escapes  bool // $'…': \n adds a line
	moves    int  // its firstMove, if it is not verbatim
	appended bool // >>: its first line is not the file's first
	guessed  bool // the requested file has the same name, and possibly another path
}

// Limits in bytes for searching a word or a quotation in code.
const (
	maxWord   = 256
	maxSearch = 256 << 10
)

// languages are the names that a tool's code may be tagged with.
var languages = map[string][]string{
	"python":  {"python"},
	"node":    {"javascript", "typescript", "js", "node"},
	"bash":    {"bash", "sh", "shell"},
	"sh":      {"bash", "sh", "shell"},
	"jq":      {"jq"},
	"sqlite3": {"sql", "sqlite"},
	"psql":    {"sql", "postgresql"},
	"awk":     {"awk"},
	"perl":    {"perl"},
	"ruby":    {"ruby"},
}

// target returns the file to which a here-document of an unknown language is written: a Makefile,
// C.
var target = lazyregexp.New(`(?:(?:^|[^\d&>])>>?|\btee(?: -a| --append)?)\s*["']?([\w./@%+,=-]+)`)

// addRegions records the code in a step's script. It skips code outside of the script: a parser's
// result is checked because the check is cheap.
func (d *Diagnoser) addRegions(step int) {
	s := d.steps[step]
	if s.Script == nil {
		return
	}
	src := s.Script.Source
	for id, c := range s.Script.Commands {
		if !fits(c.Span, len(src)) {
			continue
		}
		for _, e := range c.Embedded {
			if !fits(e.Span, len(src)) {
				continue
			}
			r := region{step: step, command: id, language: e.Language, start: e.Span.Start,
				end: e.Span.End, verbatim: e.Verbatim}
			h := slices.IndexFunc(c.Heredocs, func(h syntax.Heredoc) bool {
				return h.Span.Start <= r.start && r.end <= h.Span.End
			})
			switch {
			case e.File != "":
				r.from, r.name, r.path = file, e.File, absolute(s.Dir, e.File)
				r.appended = appends(src[c.Span.Start:c.Span.End], e.File)
			case h >= 0:
				r.from = input
			}
			r.fill(src, c, h >= 0 && !c.Heredocs[h].String)
			d.regions = append(d.regions, r)
		}
		for _, h := range c.Heredocs {
			if fits(h.Span, len(src)) &&
				!slices.ContainsFunc(c.Embedded, func(e syntax.Embedded) bool {
					return h.Span.Start <= e.Span.Start && e.Span.End <= h.Span.End
				}) {
				r := region{step: step, command: id, from: data, start: h.Span.Start,
					end: h.Span.End, verbatim: h.Verbatim}
				head := src[c.Span.Start:min(max(c.Span.Start, r.start), c.Span.End)]
				if m := target.FindSubmatch(head[:min(len(head), maxLine)]); m != nil &&
					!h.String {
					r.from, r.name, r.path = file, string(m[1]), absolute(s.Dir, string(m[1]))
					r.appended = appends(head, r.name)
				}
				r.fill(src, c, !h.String)
				d.regions = append(d.regions, r)
			}
		}
	}
}

// fill sets what happens to the code between the script and its program.
func (r *region) fill(src []byte, c syntax.Command, heredoc bool) {
	if r.verbatim {
		return
	}
	defer func() { r.moves = firstMove(src[r.start:r.end], r.escapes) }()
	if heredoc {
		head := src[c.Span.Start:min(max(c.Span.Start, r.start), len(src))]
		r.tabs = bytes.Contains(head, []byte("<<-"))
		return
	}
	r.escapes = r.start >= 2 && src[r.start-1] == '\'' && src[r.start-2] == '$'
}

func fits(s syntax.Span, size int) bool {
	return 0 <= s.Start && s.Start <= s.End && s.End <= size
}

// appends reports whether a command writes to the end of the file name.
func appends(command []byte, name string) bool {
	text := string(command[:min(len(command), maxLine)])
	if strings.Contains(text, "tee -a ") || strings.Contains(text, "tee --append ") {
		return true
	}
	for {
		_, after, ok := strings.Cut(text, ">>")
		if !ok {
			return false
		}
		if strings.HasPrefix(strings.TrimLeft(after, " \t\"'"), name) {
			return true
		}
		text = after
	}
}

// candidates returns the code that a tool's frame can refer to: only the code nearest to the
// failing command.
func (c *search) candidates(tool string, f frame) []region {
	if f.from == file {
		return c.files(f.name)
	}
	speaks := func(r region) bool {
		return (r.from == f.from || (f.from == code && (r.from == argument || r.from == input))) &&
			slices.Contains(languages[tool], r.language)
	}
	if f.from == data {
		speaks = func(r region) bool {
			return r.from == data || (r.from == input && r.language == "json")
		}
	}
	named := func(r region) bool {
		return r.from == file && r.name != "" && c.words[path.Clean(r.name)]
	}
	// A program can be read from a pipe: cat <<EOF | python3. Then the here-document's reader is
	// unknown.
	piped := func(r region) bool { return (f.from == input || f.from == code) && r.from == data }
	for _, is := range []func(region) bool{speaks, named, piped} {
		if found := c.nearest(is); len(found) > 0 {
			return found
		}
	}
	return nil
}

// nearest returns the regions of the failing command, otherwise those of functions because it may
// call a function.
func (c *search) nearest(is func(region) bool) []region {
	var own, all []region
	for _, r := range c.d.regions {
		if !is(r) {
			continue
		}
		if r.from == file {
			if r.step <= c.step {
				own = append(own, r)
			}
			continue
		}
		if r.step != c.step {
			continue
		}
		if c.function[r.command] {
			all = append(all, r)
		}
		if c.inside[r.command] || (r.from == data && c.pipeline[r.command]) {
			own = append(own, r)
		}
	}
	if len(own) > 0 {
		return own
	}
	return all
}

// foreign matches paths of installed code, whose names may equal an author's names, such as
// index.js.
var foreign = lazyregexp.New(
	`^/(usr|lib|opt|snap|nix)/|/(node_modules|site-packages|dist-packages|gems|vendor)/|/lib/(python|ruby|perl|node)`)

// files returns the code that was written to a file, by its path, or by its name if only one file
// has the name. Of several writes the last counts, preceded by the writes that it was appended to.
func (c *search) files(name string) []region {
	name = strings.TrimPrefix(name, "file://")
	later := func(r region) bool { // written after the failing command ran
		return r.step > c.step ||
			(r.step == c.step && c.command >= 0 && r.command > c.command && !c.function[c.command])
	}
	abs := absolute(c.d.steps[c.step].Dir, name)
	var exact, byBase []region
	paths := map[string]bool{}
	for _, i := range c.d.byBase[path.Base(abs)] {
		r := c.d.regions[i]
		if later(r) {
			continue
		}
		if r.path == abs {
			exact = append(exact, r)
		} else if !path.IsAbs(name) || !path.IsAbs(r.name) {
			r.guessed = true
			byBase = append(byBase, r)
			paths[r.path] = true
		}
	}
	if len(exact) == 0 && len(paths) == 1 && !foreign.MatchString(name) {
		exact = byBase
	}
	for i := len(exact) - 1; i > 0; i-- {
		if !exact[i].appended {
			return exact[i:]
		}
	}
	return exact
}

// wholeCode returns the span of a tool's code, if it is a single piece.
func (c *search) wholeCode(tool string) (syntax.Span, bool) {
	found := c.nearest(func(r region) bool {
		return (r.from == argument || r.from == input) &&
			slices.Contains(languages[tool], r.language)
	})
	if len(found) != 1 || !c.inside[found[0].command] {
		return syntax.Span{}, false
	}
	return c.d.span(found[0].step, found[0].start, found[0].end), true
}

// locate determines the position of a frame. It returns false if the frame refers to other code, or
// possibly to several pieces.
func (c *search) locate(tool string, f frame) (Frame, bool) {
	if f.from == script {
		return c.locateScript(f), true
	}
	type place struct{ step, start, end int }
	var sure, unsure []place
	for _, r := range c.candidates(tool, f) {
		if len(sure)+len(unsure) > 64 {
			return Frame{}, false
		}
		start, end, ok := r.locate(c.d.indexes[r.step], f)
		switch {
		case ok:
			sure = append(sure, place{r.step, start, end})
		case !r.verbatim && !r.appended && !r.guessed:
			unsure = append(unsure, place{r.step, r.start, r.end})
		}
	}
	if len(sure) == 0 {
		sure = unsure
	}
	if len(sure) != 1 {
		return Frame{}, false
	}
	return Frame{Step: sure[0].step, Span: c.d.span(sure[0].step, sure[0].start, sure[0].end)}, true
}

// locate returns the part of the script that f refers to in r. It returns false if r does not have
// that line, or if the line is ambiguous.
func (r region) locate(x *index, f frame) (start, end int, ok bool) {
	code := x.script.Source[r.start:r.end]
	quote := strings.TrimSpace(f.quote)
	from, to, ok := x.line(r.start, r.end, f.line)
	if r.appended || !ok || (!r.verbatim && r.moves < from) {
		from, to, ok = lineWith(code, quote, f.limit)
		if !ok {
			return 0, 0, false
		}
	}
	if f.loose {
		if start, end, ok := looseMatch(code[from:], f); ok {
			return r.start + from + start, r.start + from + end, true
		}
		quote = ""
	}
	line := string(code[from:to])
	plain := r.verbatim || !strings.ContainsAny(line, "$`\\")
	if quote != "" && plain && !strings.Contains(line, quote) {
		// The file is not the author's text, or is another file.
		if from, to, ok = lineWith(code, quote, 0); !ok || r.from != file {
			return 0, 0, false
		}
		line = string(code[from:to])
	}
	start, end = partOf(line, quote, f, plain, r.tabs)
	return r.start + from + start, r.start + from + end, true
}

// partOf returns the part of a line that f refers to: the text above its caret, the word of its
// message, its column, or else the line without its blanks.
func partOf(line, quote string, f frame, plain, tabs bool) (start, end int) {
	end = len(strings.TrimRight(line, " \t\r"))
	start = min(len(line)-len(strings.TrimLeft(line, " \t")), end)
	if at := strings.Index(line, quote); quote != "" && at >= 0 && f.mark >= 0 {
		return at + min(f.mark, len(quote)), at + min(max(f.markEnd, f.mark), len(quote))
	}
	for _, w := range f.words {
		if at := findWord(line, w); at >= 0 {
			return at, at + len(w)
		}
	}
	if f.column > 0 && plain {
		column := f.column
		if tabs {
			column += len(line) - len(strings.TrimLeft(line, "\t"))
		}
		start = min(byteColumn(line, column), len(line))
		end = max(end, start)
		if start < end {
			end = start + wordLength(line[start:end])
		}
	}
	return start, end
}

// looseMatch finds the quote of f in code, with any blanks between its words, and returns the part
// that f marks; without a quote it finds the first of f's words.
func looseMatch(code []byte, f frame) (start, end int, ok bool) {
	fields := strings.Fields(f.quote)
	code = code[:min(len(code), maxSearch)]
	if len(fields) == 0 || f.mark < 0 || len(f.quote) > maxWord {
		for _, w := range f.words {
			if at := findWord(string(code), w); at >= 0 {
				return at, at + len(w), true
			}
		}
		return 0, 0, false
	}
	for i, w := range fields {
		fields[i] = regexp.QuoteMeta(w)
	}
	re, err := regexp.Compile(strings.Join(fields, `\s+`))
	if err != nil {
		return 0, 0, false
	}
	m := re.FindIndex(code)
	if m == nil {
		return 0, 0, false
	}
	mark := min(f.mark, len(f.quote))
	skip := len(strings.Join(strings.Fields(f.quote[:mark]), ""))
	for start = m[0]; start < m[1]; start++ {
		if isBlank(code[start]) {
			continue
		}
		if skip == 0 {
			break
		}
		skip--
	}
	for end = start; end < m[1] && isWordByte(code[end]); end++ {
	}
	return start, max(end, min(start+1, m[1])), true
}

// findWord returns the position of w in s as a whole word; -1 if there is none.
func findWord(s, w string) int {
	if w == "" || len(w) > maxWord {
		return -1
	}
	s = s[:min(len(s), maxSearch)]
	for from := 0; ; {
		at := strings.Index(s[from:], w)
		if at < 0 {
			return -1
		}
		at += from
		after := at + len(w)
		if !(at > 0 && isWordByte(s[at-1]) && isWordByte(w[0])) &&
			!(after < len(s) && isWordByte(s[after]) && isWordByte(w[len(w)-1])) {
			return at
		}
		from = at + 1
	}
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' ||
		c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// firstMove returns the offset of the first byte after which the shell's processing can change the
// number of lines; the text's length if there is none.
func firstMove(code []byte, escapes bool) int {
	first := len(code)
	for _, mark := range []string{"$", "`", "\\\n"} {
		if i := bytes.Index(code[:first], []byte(mark)); i >= 0 {
			first = i
		}
	}
	if i := bytes.IndexByte(code[:first], '\\'); escapes && i >= 0 {
		first = i
	}
	return first
}

// lineWith returns the only line of code that equals quote, or else the only line that contains it.
// With a limit above 0 it returns the last such line up to the line limit. It returns false for
// long code because a guest can request many quotes.
func lineWith(code []byte, quote string, limit int) (from, to int, ok bool) {
	if quote == "" || len(code) > maxSearch {
		return 0, 0, false
	}
	var is, has [][2]int
	at, n := 0, 0
	for line := range bytes.Lines(code) {
		if n++; limit > 0 && n > limit {
			break
		}
		part := [2]int{at, at + len(bytes.TrimRight(line, "\r\n"))}
		at += len(line)
		if !bytes.Contains(line, []byte(quote)) {
			continue
		}
		has = append(has, part)
		if string(bytes.TrimSpace(line)) == quote {
			is = append(is, part)
		}
	}
	if len(is) == 0 {
		is = has
	}
	if len(is) == 0 || (len(is) > 1 && limit == 0) {
		return 0, 0, false
	}
	last := is[len(is)-1]
	return last[0], last[1], true
}

// byteColumn returns the offset of the character column, from 1, in line.
func byteColumn(line string, column int) int {
	at := 0
	for range column - 1 {
		if at >= len(line) {
			break
		}
		_, size := utf8.DecodeRuneInString(line[at:])
		at += size
	}
	return at
}

// clip limits a command's span to the script.
func (c *search) clip(step int, s syntax.Span) syntax.Span { return c.d.span(step, s.Start, s.End) }

// span returns the span of the bytes start..end of a step's script.
func (d *Diagnoser) span(step, start, end int) syntax.Span {
	src := d.steps[step].Script.Source
	start = min(max(start, 0), len(src))
	end = min(max(end, start), len(src))
	s := syntax.Span{Start: start, End: end}
	s.Line, s.Column = d.indexes[step].place(start)
	s.EndLine, s.EndColumn = d.indexes[step].place(end)
	return s
}
