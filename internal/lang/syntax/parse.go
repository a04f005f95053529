package syntax

import (
	"fmt"
	"slices"
	"sort"
	"time"
)

// Limits of a script. The rest is not parsed, and Script.Partial reports that.
const (
	maxScript   = 16 << 20 // bytes
	maxCommands = 200_000  // each costs some 300 bytes
	maxFaults   = 20       // in a script, and in each piece of embedded code

	maxParse    = 30 * time.Second // of a Parse, wall clock
	maxEmbedded = 4 << 20          // bytes of embedded code that are parsed in a script
	maxGrammar  = 5 * time.Second  // for embedded code other than shell code
	maxNesting  = 8                // code in code in code
)

// Parse parses a script for bash. See ParseAs.
func Parse(src []byte) *Script { return ParseAs(src, "bash") }

// ParseAs parses a script for a shell, "bash" or "sh". It always returns a script: Partial tells
// what is missing and why. The script keeps src, which must not be changed afterwards. ParseAs is
// safe for concurrent use. Its time and memory are bounded by the limits in docs/shell.md.
func ParseAs(src []byte, shell string) *Script {
	p := &scriptParser{
		script: &Script{Source: src, Commands: []Command{}},
		budget: &budget{until: time.Now().Add(maxParse), grammars: maxGrammar,
			embedded: maxEmbedded, commands: maxCommands},
	}
	if len(src) > maxScript {
		p.partial(fmt.Sprintf("the script has %d bytes; the limit for parsing is %d",
			len(src), maxScript))
		return p.script
	}
	p.lines = newLineIndex(src)
	p.shell(src, shell)
	p.order()
	return p.script
}

// A budget bounds the work of a Parse.
type budget struct {
	until    time.Time
	grammars time.Duration // remaining time for grammars
	embedded int           // remaining bytes for grammars
	commands int           // remaining commands
}

func (b *budget) spent() bool { return time.Now().After(b.until) }

// scriptParser is the state of a Parse.
type scriptParser struct {
	script *Script
	lines  lineIndex
	budget *budget
}

// shell parses src, statement by statement at the top level.
func (p *scriptParser) shell(src []byte, shell string) {
	w := &walker{p: p, src: &source{data: src}}
	at, fault := readShell(src, shell, p.budget, func(s *stmt) bool {
		w.stmt(s, -1, 0)
		return p.budget.commands > 0
	})
	switch {
	case p.budget.commands <= 0:
		p.partial(fmt.Sprintf("the script has more than %d commands", maxCommands))
	case fault == nil:
	case fault.limit:
		p.partial(fault.message)
	default:
		p.recoverFrom(at, fault)
	}
}

// partial records the first reason why the script is not parsed completely.
func (p *scriptParser) partial(why string) {
	if p.script.Partial == "" {
		p.script.Partial = why
	}
}

func (p *scriptParser) fault(start, end int, message string) {
	if len(p.script.Faults) < maxFaults {
		p.script.Faults = append(p.script.Faults,
			Fault{Span: p.lines.span(start, end), Message: message})
	}
}

// order numbers the commands by their beginnings. They were found in that order except those in
// here-documents and arithmetic.
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
	slices.SortStableFunc(p.script.Faults, func(a, b Fault) int {
		return a.Span.Start - b.Span.Start
	})
}

// A lineIndex holds the offsets of a text's lines.
type lineIndex struct {
	starts []uint32 // of the second line and later lines
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

// span returns the span of two offsets, limited to the text.
func (x lineIndex) span(start, end int) Span {
	start = min(max(start, 0), x.size)
	end = min(max(end, start), x.size)
	s := Span{Start: start, End: end}
	s.Line, s.Column = x.position(start)
	s.EndLine, s.EndColumn = x.position(end)
	return s
}
