package syntax

import (
	"fmt"
	"slices"
	"sort"
	"time"
)

// Limits of one script. What is beyond is not parsed, and Script.Partial says so.
const (
	MaxScript   = 16 << 20 // bytes
	MaxCommands = 200_000  // each costs some 300 bytes
	MaxFaults   = 20       // in a script, and in each piece of embedded code

	maxParse    = 30 * time.Second // of one Parse, on the wall clock
	maxEmbedded = 4 << 20          // bytes of embedded code that are read in one script
	maxGrammar  = 5 * time.Second  // for that, without what is shell code
	maxNesting  = 8                // code in code in code
)

// Parse parses a script for bash. See ParseAs.
func Parse(src []byte) *Script { return ParseAs(src, "bash") }

// ParseAs parses a script for a shell, "bash" or "sh". It always returns a script:
// Partial says what is missing in it and why. The script keeps src, which must not
// be changed afterwards. It is safe for concurrent use. Its time and memory are
// bounded by the limits of docs/shell.md.
func ParseAs(src []byte, shell string) *Script {
	p := &scriptParser{
		script: &Script{Source: src, Commands: []Command{}},
		budget: &budget{until: time.Now().Add(maxParse), grammars: maxGrammar, embedded: maxEmbedded, commands: MaxCommands},
	}
	if len(src) > MaxScript {
		p.partial(fmt.Sprintf("the script has %d bytes; the most that is parsed is %d", len(src), MaxScript))
		return p.script
	}
	p.lines = newLineIndex(src)
	p.shell(src, shell)
	p.order()
	return p.script
}

// A budget bounds the work of one Parse.
type budget struct {
	until    time.Time
	grammars time.Duration // that grammars may still take
	embedded int           // bytes that grammars may still read
	commands int           // that may still be added
}

func (b *budget) spent() bool { return time.Now().After(b.until) }

// scriptParser is the state of one Parse.
type scriptParser struct {
	script *Script
	lines  lineIndex
	budget *budget
}

// shell parses all of src, one statement of the top level after the other.
func (p *scriptParser) shell(src []byte, shell string) {
	w := &walker{p: p, src: &source{data: src}}
	at, fault := readShell(src, shell, p.budget, func(s *stmt) bool {
		w.stmt(s, -1, 0)
		return p.budget.commands > 0
	})
	switch {
	case p.budget.commands <= 0:
		p.partial(fmt.Sprintf("the script has more than %d commands", MaxCommands))
	case fault == nil:
	case fault.limit:
		p.partial(fault.message)
	default:
		p.recoverFrom(at, fault)
	}
}

// partial notes the first reason why the script is not parsed to its end.
func (p *scriptParser) partial(why string) {
	if p.script.Partial == "" {
		p.script.Partial = why
	}
}

func (p *scriptParser) fault(start, end int, message string) {
	if len(p.script.Faults) < MaxFaults {
		p.script.Faults = append(p.script.Faults, Fault{Span: p.lines.span(start, end), Message: message})
	}
}

// order numbers the commands by where they begin. They were found in that order
// but for those in here-documents and arithmetic.
func (p *scriptParser) order() {
	commands := p.script.Commands
	perm := make([]int, len(commands))
	for i := range perm {
		perm[i] = i
	}
	before := func(a, b int) int { return commands[a].Span.Start - commands[b].Span.Start }
	if !slices.IsSortedFunc(perm, before) {
		slices.SortStableFunc(perm, before)
		sorted := make([]Command, len(commands))
		number := make([]int, len(commands))
		for to, from := range perm {
			sorted[to], number[from] = commands[from], to
		}
		for i := range sorted {
			sorted[i].ID = i
			if sorted[i].Parent >= 0 {
				sorted[i].Parent = number[sorted[i].Parent]
			}
		}
		p.script.Commands = sorted
	}
	slices.SortStableFunc(p.script.Faults, func(a, b Fault) int { return a.Span.Start - b.Span.Start })
}

// A lineIndex holds where the lines of a text begin.
type lineIndex struct {
	starts []uint32 // of the second line and those after it
	size   int
}

func newLineIndex(src []byte) lineIndex {
	x := lineIndex{size: len(src)}
	for i, c := range src {
		if c == '\n' {
			x.starts = append(x.starts, uint32(i+1))
		}
	}
	return x
}

// position returns line and column of an offset, both from 1.
func (x lineIndex) position(at int) (line, column int) {
	n := sort.Search(len(x.starts), func(i int) bool { return int(x.starts[i]) > at })
	if n == 0 {
		return 1, at + 1
	}
	return n + 1, at - int(x.starts[n-1]) + 1
}

// span makes a span of two offsets, and keeps it inside the text.
func (x lineIndex) span(start, end int) Span {
	start = min(max(start, 0), x.size)
	end = min(max(end, start), x.size)
	s := Span{Start: start, End: end}
	s.Line, s.Column = x.position(start)
	s.EndLine, s.EndColumn = x.position(end)
	return s
}
