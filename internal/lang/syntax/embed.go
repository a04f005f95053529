package syntax

import (
	"path"
	"strings"

	sh "mvdan.cc/sh/v3/syntax"
)

// maxPrefixes bounds the programs before the program that runs: env nice sudo …
const maxPrefixes = 16

// maxWords bounds the words of a command that are searched for code.
const maxWords = 10_000

// embed finds the code in other languages in a simple command, and tags the command with its
// language.
func (w *walker) embed(c *Command, args []*sh.Word, redirs []*sh.Redirect) {
	rule := w.match(&args)
	if rule == nil {
		return
	}
	if w.into == nil && rule.Language != "" {
		c.Language = rule.Language
	}
	if rule.File != "" {
		w.files(c, rule, args[1:], redirs)
		return
	}
	o := w.options(rule, args[1:])
	for _, code := range o.code {
		w.addCode(c, rule.Language, "", code)
	}
	if o.stdin {
		if code := w.stdin(redirs); code != nil {
			w.addCode(c, rule.Language, "", code)
		}
	}
}

// match finds the rule of a command's program, and removes from args preceding programs that only
// run another program.
func (w *walker) match(args *[]*sh.Word) *compiledRule {
	for range maxPrefixes {
		if len(*args) == 0 {
			return nil
		}
		name, ok := w.literal((*args)[0])
		if !ok || name == "" {
			return nil
		}
		rule := theRules().find(path.Base(name))
		if rule == nil || !rule.Prefix {
			return rule
		}
		rest := (*args)[1:]
		o := w.options(rule, rest)
		n := o.end + rule.Skip
		for n < len(rest) && isAssignment(string(w.wordCode(rest[n]).data)) {
			n++
		}
		*args = rest[min(n, len(rest)):]
	}
	return nil
}

// isAssignment reports whether a word sets a variable, as for env and sudo.
func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	if !ok || name == "" {
		return false
	}
	for _, c := range []byte(name) {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// found is the result of a rule for the words after a program's name.
type found struct {
	code  []*code
	stdin bool // standard input is code
	end   int  // number of words that the options take, if they precede the operands

	operands []*code
	instead  bool // an option replaces the code
	forced   bool // an option makes standard input code
	dash     bool // so does an operand "-"
}

// options parses words like getopt(3) and its long form, with a rule's options.
func (w *walker) options(rule *compiledRule, words []*sh.Word) found {
	var f found
	words = words[:min(len(words), maxWords)]
	i := 0
	for ; i < len(words); i++ {
		c := w.wordCode(words[i])
		text := string(c.data)
		if text == "--" {
			i++
			break
		}
		if len(text) > 1 && (text[0] == '-' || text[0] == '+') {
			i += w.option(&f, rule, words[i:], c)
			continue
		}
		if rule.First {
			break
		}
		f.operand(c)
	}
	f.end = min(i, len(words))
	if rule.Prefix {
		return f
	}
	for _, word := range words[f.end:] {
		f.operand(w.wordCode(word))
	}
	f.choose(&rule.languageRule)
	return f
}

// option parses the option c, the first of words, and returns how many of the following words
// belong to it.
func (w *walker) option(f *found, rule *compiledRule, words []*sh.Word, c *code) int {
	o, value := rule.options.read(string(c.data))
	f.forced = f.forced || o.kind == forceOption
	f.instead = f.instead || o.kind == insteadOption
	switch {
	case o.kind == flagOption, o.kind == forceOption:
		return 0
	case value < len(c.data): // -cCODE, --eval=CODE
		if o.kind == codeOption {
			f.code = append(f.code, c.slice(value))
		}
		return 0
	}
	if o.kind == codeOption && len(words) > 1 {
		f.code = append(f.code, w.wordCode(words[1]))
	}
	return o.words
}

// operand records a word that is not an option.
func (f *found) operand(c *code) {
	if string(c.data) == "-" && len(f.operands) == 0 {
		f.dash = true
		return
	}
	f.operands = append(f.operands, c)
}

// choose selects the code among the operands and standard input.
func (f *found) choose(rule *languageRule) {
	// ssh runs all of its words joined: only a single word is code without changes.
	joined := rule.First && rule.Operand == 2 && len(f.operands) > 2
	if first := rule.Operand - 1; first >= 0 && !f.instead && len(f.code) == 0 &&
		!joined && first < len(f.operands) {
		f.code = append(f.code, f.operands[first])
		if rule.Rest {
			f.code = append(f.code, f.operands[first+1:]...)
		}
	}
	f.stdin = rule.Stdin > 0 && len(f.code) == 0 && !f.instead &&
		(f.dash || f.forced || len(f.operands) < rule.Stdin)
}

// stdin returns the code of the here-document or here-string on standard input.
func (w *walker) stdin(redirs []*sh.Redirect) *code {
	for i := len(redirs) - 1; i >= 0; i-- {
		h, c := w.heredoc(redirs[i])
		if c != nil && h.FD == 0 {
			return c
		}
	}
	return nil
}

// files adds a here-document that is written to a file whose name determines its language.
func (w *walker) files(c *Command, rule *compiledRule, args []*sh.Word, redirs []*sh.Redirect) {
	body := w.stdin(redirs)
	if body == nil {
		return
	}
	var names []string
	switch rule.File {
	case ">":
		for _, a := range args {
			if text := string(w.wordCode(a).data); text != "-" {
				return // it copies files
			}
		}
		for _, r := range redirs {
			out := r.Op == sh.RdrOut || r.Op == sh.AppOut || r.Op == sh.RdrClob
			if name, ok := w.literal(r.Word); out && ok && (r.N == nil || r.N.Value == "1") {
				names = append(names, name)
			}
		}
	case "operands":
		for _, a := range args {
			if name, ok := w.literal(a); ok && !strings.HasPrefix(name, "-") {
				names = append(names, name)
			}
		}
	default:
		for _, a := range args {
			if name, ok := w.literal(a); ok && strings.HasPrefix(name, rule.File) {
				names = append(names, name[len(rule.File):])
			}
		}
	}
	for _, name := range names {
		if language := endings()[path.Ext(name)]; language != "" {
			w.addCode(c, language, name, body)
			return
		}
	}
}

// addCode records code in a command, and parses it with its own grammar. Code inside it follows.
func (w *walker) addCode(c *Command, language, file string, code *code) {
	into := w.into
	if into == nil {
		into = &c.Embedded
	}
	if code.end <= code.start {
		return
	}
	e := Embedded{Language: language, File: file, Span: w.span(code.start, code.end),
		Verbatim: code.verbatim && w.src.verbatim()}
	at := len(*into)
	*into = append(*into, e)
	exact := code.exact && w.src.exact()
	var faults []codeFault
	var parsed bool
	switch {
	case w.p.budget.embedded < len(code.data) || w.p.budget.spent():
		return
	case language == "bash":
		faults, parsed = w.embeddedShell(code, into)
	case exact:
		w.p.budget.embedded -= len(code.data)
		faults, parsed = parseCode(language, code.data, w.p.budget)
	}
	(*into)[at].Parsed = parsed && exact
	if !exact {
		return
	}
	for _, f := range faults {
		(*into)[at].Faults = append((*into)[at].Faults,
			Fault{Span: w.p.lines.span(code.place(f.start), code.placeEnd(f.start, f.end)),
				Message: f.message})
	}
}

// verbatim reports whether the source's bytes are in the script unchanged.
func (s *source) verbatim() bool {
	return s.outer == nil || s.outer.verbatim && s.outer.in.verbatim()
}

// exact reports whether the source is known: no expansion around it.
func (s *source) exact() bool { return s.outer == nil || s.outer.exact && s.outer.in.exact() }

// embeddedShell searches shell code for code.
func (w *walker) embeddedShell(c *code, into *[]Embedded) (faults []codeFault, parsed bool) {
	if w.src.depth >= maxNesting {
		return nil, false
	}
	w.p.budget.embedded -= len(c.data)
	inner := &walker{p: w.p, into: into,
		src: &source{data: c.data, outer: c, depth: w.src.depth + 1}}
	_, fault := readShell(c.data, "bash", w.p.budget, func(s *stmt) bool {
		inner.stmt(s, -1, 0)
		return true
	})
	switch {
	case fault == nil:
		return nil, true
	case fault.limit:
		return nil, false
	}
	return []codeFault{{fault.at, fault.at, fault.message}}, true
}
