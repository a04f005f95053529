package trace

import (
	"sort"
	"strings"

	"turnstone.dev/turnstone/syntax"
)

// upward is how many lines a command may begin before the line that bash gives it:
// bash takes the line where the first word ends, and for some compounds that of
// the first command in them.
const upward = 16

// Resolve sets Command of each record and site of rep to the command of script
// that it is. It goes by kind, words, line, and the record around it; where the same
// text stands several times in one place, by order. Words with substitutions match
// up to there, since bash keeps those as it would print them, not as they were
// written. What comes out of eval, a sourced file, a trap or an alias stands
// nowhere in the script and keeps -1.
func Resolve(script *syntax.Script, rep *Report) {
	r := newResolver(script, rep)
	for i := range rep.Records {
		r.record(&rep.Records[i])
	}
	for i := range rep.Sites {
		if got, ok := r.sites[rep.Sites[i].ID]; ok {
			rep.Sites[i].Command = got
		}
	}
}

type place struct {
	line  int
	kind  syntax.Kind
	first string // the first word, "" for one with a substitution and for compounds
}

type turn struct{ site, parent int }

type resolver struct {
	script   *syntax.Script
	at       map[place][]int
	patterns map[int]pattern  // of simple commands, by index
	byID     map[int]*Record  // records seen
	cut      map[int]bool     // sites whose words are not all
	matching map[int][]int    // candidates of a site
	turns    map[turn]int     // how many records of a site a parent has had
	sites    map[int]int      // what the records of a site are, -1 if different ones
	words    map[string][]int // simple commands inside substitutions, by first word
}

func newResolver(script *syntax.Script, rep *Report) *resolver {
	r := &resolver{script: script, at: make(map[place][]int), patterns: make(map[int]pattern), byID: make(map[int]*Record),
		cut: make(map[int]bool), matching: make(map[int][]int), turns: make(map[turn]int), sites: make(map[int]int),
		words: make(map[string][]int)}
	for i := range rep.Sites {
		r.cut[rep.Sites[i].ID] = rep.Sites[i].Cut
	}
	for i := range script.Commands {
		c := &script.Commands[i]
		p := place{line: c.Span.Line, kind: c.Kind}
		if c.Kind == syntax.Simple {
			pat := newPattern(c.Words)
			r.patterns[i] = pat
			p.first = pat.first
			if c.Substituted {
				r.words[p.first] = append(r.words[p.first], i)
			}
		}
		r.at[p] = append(r.at[p], i)
	}
	return r
}

func (r *resolver) record(rec *Record) {
	r.byID[rec.ID] = rec
	rec.Command = -1
	defer func() {
		if got, ok := r.sites[rec.Site]; ok && got != rec.Command {
			r.sites[rec.Site] = -1
		} else {
			r.sites[rec.Site] = rec.Command
		}
	}()
	if r.foreign(rec) {
		return
	}
	all, ok := r.matching[rec.Site]
	if !ok {
		all = r.candidates(rec)
		r.matching[rec.Site] = all
	}
	in := r.around(rec)
	fit := all
	if in >= 0 {
		if fit = r.inside(all, in); len(fit) == 0 && rec.Flags.Substituted {
			fit = r.inside(r.substituted(rec), in)
		}
		// A function's body stands elsewhere than its call.
		if len(fit) == 0 && r.called(rec) {
			fit = all
		}
	}
	if len(fit) == 0 {
		return
	}
	t := turn{rec.Site, rec.Parent}
	rec.Command = fit[r.turns[t]%len(fit)]
	r.turns[t]++
}

// candidates are the commands that look like rec and stand where bash says.
func (r *resolver) candidates(rec *Record) []int {
	firsts := []string{""}
	if rec.Kind == syntax.Simple {
		first, _, _ := strings.Cut(rec.Words, " ")
		if first != "" {
			firsts = append(firsts, first)
		}
	}
	var out []int
	for line := rec.Line; line >= max(1, rec.Line-upward) && len(out) == 0; line-- {
		for _, first := range firsts {
			for _, i := range r.at[place{line, rec.Kind, first}] {
				if r.script.Commands[i].Span.EndLine >= rec.Line && r.alike(i, rec) {
					out = append(out, i)
				}
			}
		}
	}
	sort.Ints(out)
	return out
}

// substituted are the commands inside $(…) with rec's words, whatever their line:
// bash counts lines there in the text as it prints it.
func (r *resolver) substituted(rec *Record) []int {
	if rec.Kind != syntax.Simple {
		return nil
	}
	first, _, _ := strings.Cut(rec.Words, " ")
	var out []int
	for _, i := range r.words[first] {
		if r.alike(i, rec) {
			out = append(out, i)
		}
	}
	return out
}

func (r *resolver) alike(i int, rec *Record) bool {
	switch rec.Kind {
	case syntax.Simple:
		return r.patterns[i].match(rec.Words, r.cut[rec.Site])
	case syntax.Function:
		c := r.script.Commands[i].Span
		head := r.script.Source[c.Start:min(c.End, c.Start+MaxText+20)]
		return strings.Contains(string(head), rec.Words)
	}
	return true
}

// inside returns those of the commands that the command in contains; only its own
// children, if there are any.
func (r *resolver) inside(all []int, in int) []int {
	outer := r.script.Commands[in].Span
	var within, children []int
	for _, i := range all {
		c := &r.script.Commands[i]
		if i == in || c.Span.Start < outer.Start || (c.Span.End > outer.End && !c.Substituted) {
			continue
		}
		if c.Parent == in {
			children = append(children, i)
		}
		within = append(within, i)
	}
	if len(children) > 0 {
		return children
	}
	return within
}

// around is the command of the next outer record that has one, or -1.
func (r *resolver) around(rec *Record) int {
	for p := r.byID[rec.Parent]; p != nil; p = r.byID[p.Parent] {
		if p.Command >= 0 {
			return p.Command
		}
	}
	return -1
}

// caller is the simple command inside which rec ran, or nil.
func (r *resolver) caller(rec *Record) *Record {
	for p := r.byID[rec.Parent]; p != nil; p = r.byID[p.Parent] {
		if p.Kind == syntax.Simple {
			return p
		}
	}
	return nil
}

func (r *resolver) called(rec *Record) bool {
	return r.caller(rec) != nil
}

// foreign says whether rec's text was read from somewhere else than the script.
func (r *resolver) foreign(rec *Record) bool {
	by := r.caller(rec)
	if rec.Flags.Trap && (by == nil || !by.Flags.Trap) {
		return true // the trap's own text; a function that it calls is the script's
	}
	if by == nil || rec.Flags.Substituted && !by.Flags.Substituted {
		return false
	}
	for _, w := range strings.Fields(by.Words) {
		switch {
		case w == "command" || w == "builtin" || strings.Contains(w, "="):
			continue
		case w == "eval" || w == "source" || w == ".":
			return true
		}
		return false
	}
	return false
}

// A pattern is a simple command's words: pieces between which there may be anything.
type pattern struct {
	first  string // the first word if it is literal
	pieces []string
}

func newPattern(words []string) pattern {
	var p pattern
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		w = strings.ReplaceAll(w, "\\\n", "")
		end := len(w)
		for _, mark := range []string{"$(", "`", "<(", ">(", "$'", "$\"", "=(", "${"} {
			if j := strings.Index(w, mark); j >= 0 && (mark != "${" || strings.ContainsAny(w, "(`")) {
				end = min(end, j)
			}
		}
		b.WriteString(w[:end])
		if end < len(w) {
			p.pieces = append(p.pieces, b.String())
			b.Reset()
		} else if i == 0 {
			p.first, _, _ = strings.Cut(w, " ") // a quoted word may have spaces, as the record's text has
		}
	}
	p.pieces = append(p.pieces, b.String())
	return p
}

// match says whether text can be these words; cut says that text is only the beginning.
func (p pattern) match(text string, cut bool) bool {
	first := p.pieces[0]
	if cut && len(text) <= len(first) {
		return strings.HasPrefix(first, text)
	}
	if !strings.HasPrefix(text, first) {
		return false
	}
	text = text[len(first):]
	if len(p.pieces) == 1 {
		return text == ""
	}
	if cut {
		return true
	}
	last := p.pieces[len(p.pieces)-1]
	for _, piece := range p.pieces[1 : len(p.pieces)-1] {
		at := strings.Index(text, piece)
		if at < 0 {
			return false
		}
		text = text[at+len(piece):]
	}
	return strings.HasSuffix(text, last)
}
