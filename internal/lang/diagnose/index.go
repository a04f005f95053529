package diagnose

import (
	"bytes"
	"slices"
	"sort"
	"sync"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// An index finds lines and commands of a script without walking the whole script: a failing step
// can name thousands of positions in a script of megabytes. It is built on first use, and is safe
// for concurrent use.
type index struct {
	script *syntax.Script
	once   sync.Once
	breaks []int            // offsets of the newlines
	starts []int            // commands, by their beginning
	goes   []int            // simple commands of more than one line, by their end
	named  map[string][]int // commands, by their program
}

func newIndex(script *syntax.Script) *index {
	if script == nil {
		return nil
	}
	return &index{script: script}
}

func (x *index) load() {
	x.once.Do(func() {
		src := x.script.Source
		for at := 0; ; at++ {
			i := bytes.IndexByte(src[at:], '\n')
			if i < 0 {
				break
			}
			at += i
			x.breaks = append(x.breaks, at)
		}
		commands := x.script.Commands
		x.named = map[string][]int{}
		for i, c := range commands {
			x.starts = append(x.starts, i)
			if c.Program != "" {
				x.named[c.Program] = append(x.named[c.Program], i)
			}
			if c.Kind == syntax.KindSimple && fits(c.Span, len(src)) &&
				bytes.IndexByte(src[c.Span.Start:c.Span.End], '\n') >= 0 {
				x.goes = append(x.goes, i)
			}
		}
		slices.SortStableFunc(x.starts, func(a, b int) int {
			return commands[a].Span.Start - commands[b].Span.Start
		})
		slices.SortStableFunc(x.goes, func(a, b int) int {
			return commands[a].Span.End - commands[b].Span.End
		})
	})
}

// lines returns the script's number of lines; a script without a newline has one.
func (x *index) lines() int {
	x.load()
	return 1 + len(x.breaks)
}

// line returns the bytes of line n of the code start..end of the script, as offsets in that code.
// The line after the last is the end of the last non-empty line, which is where a parser reports
// missing text.
func (x *index) line(start, end, n int) (from, to int, ok bool) {
	x.load()
	if n < 1 {
		return 0, 0, false
	}
	code := x.script.Source[start:end]
	breaks := x.breaks[sort.SearchInts(x.breaks, start):sort.SearchInts(x.breaks, end)]
	skip := min(n-1, len(breaks))
	if skip > 0 {
		from = breaks[skip-1] + 1 - start
	}
	if skip < n-2 || (skip < n-1 && len(code) == 0) {
		return 0, 0, false
	}
	if skip < n-1 || (from == len(code) && n > 1) {
		to = len(bytes.TrimRight(code, " \t\r\n"))
		return to, to, true
	}
	to = len(code)
	if skip < len(breaks) {
		to = breaks[skip] - start
	}
	return from, to, true
}

// place returns the line and the column of a byte, both from 1.
func (x *index) place(at int) (line, column int) {
	x.load()
	before := sort.SearchInts(x.breaks, at)
	if before == 0 {
		return 1, at + 1
	}
	return 1 + before, at - x.breaks[before-1]
}

// beginning returns the commands that begin in a part of the script.
func (x *index) beginning(from, to int) []int {
	x.load()
	return within(x.starts, func(i int) int { return x.script.Commands[i].Span.Start }, from, to)
}

// ending returns the simple commands of more than one line that end in a part of the script,
// including its last byte and excluding its first.
func (x *index) ending(from, to int) []int {
	x.load()
	return within(x.goes, func(i int) int { return x.script.Commands[i].Span.End - 1 }, from, to)
}

// within returns the part of commands whose offsets, which rise, are at least from and before to.
func within(commands []int, offset func(command int) int, from, to int) []int {
	at := func(want int) int {
		return sort.Search(len(commands), func(i int) bool { return offset(commands[i]) >= want })
	}
	first := at(from)
	return commands[first:max(first, at(to))]
}

// programs returns the commands that start a program.
func (x *index) programs(name string) []int {
	x.load()
	return x.named[name]
}
