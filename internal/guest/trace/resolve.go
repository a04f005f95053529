package trace

import (
	"sort"
	"strings"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// upward is how many lines a command may begin before bash's line number: bash uses the line where
// the first word ends, and for some compounds the line of their first command.
const upward = 16

// maxLooks bounds the comparisons of commands with records in a Resolve. Lists are cached, so that
// only a script with thousands of similar commands on a line, or forged records, reach the bound.
// The remaining records then keep -1.
const maxLooks = 2 << 20

// Resolve sets Command of each record and site of rep to its command of script. It uses kind,
// words, line and the enclosing record; if a place contains the same text several times, it uses
// the order. Words with substitutions match up to the substitution because bash keeps its own
// printed form of these. Commands of eval, a sourced file, a trap or an alias are not in the script
// and keep -1.
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
	first string // the first word; "" for a word with a substitution and for compounds
}

type turn struct{ site, parent int }

// A look is the key for the candidates of a record.
type look struct {
	line  int
	kind  syntax.Kind
	words string // of words, the part that distinguishes candidates
	cut   bool
	// inner looks for commands inside $(…), on any line.
	inner bool
}

// An inlook is a look for commands inside a command.
type inlook struct {
	look
	in int
}

// An outer is the context of the records inside a record.
type outer struct {
	command int     // the nearest known command, or -1
	caller  *Record // the nearest simple command, or nil
}

type resolver struct {
	script   *syntax.Script
	at       map[place][]int
	patterns map[int]pattern  // patterns of simple commands, by index
	outers   map[int]outer    // by the ID of a processed record
	cut      map[int]bool     // sites with incomplete words
	matching map[look][]int   // candidates
	within   map[inlook][]int // candidates inside a command
	turns    map[turn]int     // number of records of a site per parent
	sites    map[int]int      // the command of a site's records; -1 if they differ
	words    map[string][]int // simple commands inside substitutions, by first word
	looks    int              // number of comparisons so far
}

func newResolver(script *syntax.Script, rep *Report) *resolver {
	r := &resolver{script: script, at: make(map[place][]int), patterns: make(map[int]pattern),
		outers: make(map[int]outer),
		cut:    make(map[int]bool), matching: make(map[look][]int), within: make(map[inlook][]int),
		turns: make(map[turn]int), sites: make(map[int]int),
		words: make(map[string][]int)}
	for i := range rep.Sites {
		r.cut[rep.Sites[i].ID] = rep.Sites[i].Cut
	}
	for i := range script.Commands {
		c := &script.Commands[i]
		p := place{line: c.Span.Line, kind: c.Kind}
		if c.Kind == syntax.KindSimple {
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
	rec.Command = -1
	around, ok := r.outers[rec.Parent]
	if !ok {
		around.command = -1
	}
	if !foreign(rec, around.caller) {
		rec.Command = r.find(rec, around)
	}
	if got, ok := r.sites[rec.Site]; ok && got != rec.Command {
		r.sites[rec.Site] = -1
	} else {
		r.sites[rec.Site] = rec.Command
	}
	if rec.Command >= 0 {
		around.command = rec.Command
	}
	if rec.Kind == syntax.KindSimple {
		around.caller = rec
	}
	r.outers[rec.ID] = around
}

// find returns the command of rec, or -1.
func (r *resolver) find(rec *Record, around outer) int {
	l := look{line: rec.Line, kind: rec.Kind, cut: r.cut[rec.Site]}
	if rec.Kind == syntax.KindSimple || rec.Kind == syntax.KindFunction {
		l.words = rec.Words
	}
	fit := r.candidates(l)
	if around.command >= 0 {
		all := fit
		if fit = r.inside(l, around.command); len(fit) == 0 && rec.Flags.Substituted {
			fit = r.inside(l.inside(), around.command)
		}
		// A function's body is in another place than its call.
		if len(fit) == 0 && around.caller != nil {
			fit = all
		}
	}
	if len(fit) == 0 {
		return -1
	}
	t := turn{rec.Site, rec.Parent}
	got := fit[r.turns[t]%len(fit)]
	r.turns[t]++
	return got
}

// inside returns l for the commands inside $(…) on any line: bash counts their lines in its own
// printed text.
func (l look) inside() look {
	l.inner, l.line = true, 0
	return l
}

// candidates returns the commands that match l.
func (r *resolver) candidates(l look) []int {
	out, ok := r.matching[l]
	if !ok {
		if l.inner {
			out = r.substituted(l)
		} else {
			out = r.standing(l)
		}
		r.matching[l] = out
	}
	return out
}

// looked counts a comparison that costs as much as n simple comparisons, and reports whether
// another is allowed.
func (r *resolver) looked(n int) bool {
	r.looks += n
	return r.looks <= maxLooks
}

// standing returns the commands that match l at bash's line.
func (r *resolver) standing(l look) []int {
	firsts := []string{""}
	if l.kind == syntax.KindSimple {
		first, _, _ := strings.Cut(l.words, " ")
		if first != "" {
			firsts = append(firsts, first)
		}
	}
	var out []int
	for line := l.line; line >= max(1, l.line-upward) && len(out) == 0; line-- {
		for _, first := range firsts {
			for _, i := range r.at[place{line, l.kind, first}] {
				if !r.looked(1) {
					return nil
				}
				if r.script.Commands[i].Span.EndLine >= l.line && r.alike(i, l) {
					out = append(out, i)
				}
			}
		}
	}
	sort.Ints(out)
	return out
}

// substituted returns the commands inside $(…) with l's words.
func (r *resolver) substituted(l look) []int {
	if l.kind != syntax.KindSimple {
		return nil
	}
	first, _, _ := strings.Cut(l.words, " ")
	var out []int
	for _, i := range r.words[first] {
		if !r.looked(1) {
			return nil
		}
		if r.alike(i, l) {
			out = append(out, i)
		}
	}
	return out
}

func (r *resolver) alike(i int, l look) bool {
	switch l.kind {
	case syntax.KindSimple:
		p := r.patterns[i]
		return r.looked(len(p.pieces)/8) && p.match(l.words, l.cut)
	case syntax.KindFunction:
		c := r.script.Commands[i].Span
		head := r.script.Source[c.Start:min(c.End, c.Start+MaxText+20)]
		return strings.Contains(string(head), l.words)
	}
	return true
}

// inside returns the candidates for l inside the command in; only direct children, if there are
// any.
func (r *resolver) inside(l look, in int) []int {
	key := inlook{l, in}
	out, ok := r.within[key]
	if !ok {
		if all := r.candidates(l); r.looked(len(all)) {
			out = r.contained(all, in)
		}
		r.within[key] = out
	}
	return out
}

func (r *resolver) contained(all []int, in int) []int {
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

// foreign reports whether the text of rec, which ran inside the simple command by (may be nil),
// came from outside the script.
func foreign(rec, by *Record) bool {
	if rec.Flags.Trap && (by == nil || !by.Flags.Trap) {
		return true // the trap's own text; functions that it calls are from the script
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

// A pattern matches a simple command's words: pieces with arbitrary text between them.
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
			if j := strings.Index(w, mark); j >= 0 &&
				(mark != "${" || strings.ContainsAny(w, "(`")) {
				end = min(end, j)
			}
		}
		b.WriteString(w[:end])
		if end < len(w) {
			p.pieces = append(p.pieces, b.String())
			b.Reset()
		} else if i == 0 {
			// a quoted word may contain spaces, as the record's text does
			p.first, _, _ = strings.Cut(w, " ")
		}
	}
	p.pieces = append(p.pieces, b.String())
	return p
}

// match reports whether text can be these words; cut means that text is only a prefix.
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
