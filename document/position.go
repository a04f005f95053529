package document

import (
	"sort"
	"strings"
)

// A Position is a position in a document's source.
type Position struct {
	Offset int // in bytes, from 0
	Line   int // from 1
	Column int // in bytes, from 1
}

// Position returns the position in the document of a byte of a step's script: without the
// containers' markers and the fence's indentation. A blank that CommonMark makes of a split tab has
// the position of that tab, the end of a line has the position of the first byte of its line
// ending, and the end of the script follows its last line ending. An offset outside the script is
// moved to the nearest end. For a step of another document the result is the zero Position.
//
// The time is proportional to the length of the line. Position is safe for concurrent use.
func (d *Document) Position(s *Step, offset int) Position {
	i := s.Index - 1
	if i < 0 || i >= len(d.layout.steps) || d.Steps[i] != s {
		return Position{}
	}
	lines := d.layout.steps[i].script
	if len(lines) == 0 {
		// An empty script: the line below the fence.
		at := nextLine(d.Source, d.offsetOfLine(s.Line))
		return Position{Offset: at, Line: s.Line + 1, Column: 1}
	}
	offset = min(max(offset, 0), len(s.Script))
	n := sort.Search(len(lines), func(i int) bool { return int(lines[i].script) > offset }) - 1
	l := lines[n]
	from := int(l.script)
	below := strings.Count(s.Script[from:offset], "\n") // lines between l and the wanted line
	at := l.place(offset)
	if offset == len(s.Script) {
		// After the last line, whose line ending may have two bytes.
		at = l.place(offset - 1)
		at += len(eolAt(d.Source, at))
	}
	return Position{Offset: at, Line: int(l.line) + below, Column: 1 + at - lineStart(d.Source, at)}
}

// offsetOfLine returns the start of a line of the source.
func (d *Document) offsetOfLine(line int) int {
	at := 0
	for ; line > 1 && at < len(d.Source); line-- {
		at = nextLine(d.Source, at)
	}
	return at
}

// A scriptLine maps a line of a script to the source. It also covers the following lines up to the
// next scriptLine if those lines have no prefix and end with a single byte.
type scriptLine struct {
	script uint32 // offset in the script
	source uint32 // offset in the source of the first byte that comes from the source
	line   uint32 // of the source
	pad    uint32 // blanks of a split tab in the script before that byte
}

// place returns the position of a script's byte in the source.
func (l scriptLine) place(offset int) int {
	if n := offset - int(l.script) - int(l.pad); n >= 0 {
		return int(l.source) + n
	}
	return int(l.source) - 1 // the tab
}

// scriptLines are collected while a fence is read. Their lines count from 0.
type scriptLines []scriptLine

// maxRun bounds the lines per entry, and so the time to count them.
const maxRun = 64

func (ls *scriptLines) add(script, source, line, pad int) {
	if n := len(*ls); n > 0 {
		last := (*ls)[n-1]
		if pad == 0 && last.pad == 0 && line-int(last.line) < maxRun &&
			source-int(last.source) == script-int(last.script) {
			return
		}
	}
	*ls = append(*ls, scriptLine{uint32(script), uint32(source), uint32(line), uint32(pad)})
}

// from converts lines of a text at offset base, with lines line endings before it, to positions in
// the source.
func (ls scriptLines) from(base, lines int) []scriptLine {
	for i := range ls {
		ls[i].source += uint32(base)
		ls[i].line += uint32(1 + lines)
	}
	return ls
}
