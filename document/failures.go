package document

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"turnstone.dev/turnstone"
)

// Limits for the display of failing commands and of the table of commands.
const (
	maxFailures     = 5   // per step; the others are counted
	maxCommandText  = 60  // bytes of a command's text
	maxCommandRows  = 200 // per step's table; the others are counted
	maxExcerpt      = 100 // columns of a line of source
	excerptBefore   = 40  // columns of a cut line before the marked part
	excerptTabs     = 4   // tabs extend to the next multiple
	maxExcerptBytes = 4 * maxExcerpt
)

// A SourceLine is a line of a document with a marked part.
type SourceLine struct {
	Number int    // line number in the document, from 1; 0 means no line
	Text   string // the author's bytes, without the line ending
	From   int    // byte offset in Text of the marked part
	// offset of the byte after the part; the line's end if the part continues on the next line
	To int
}

// SourceLine returns the document's line in which a part begins, for Excerpt. Lines and columns
// count from 1, columns in bytes. The part ends before endLine and endColumn. If the document has
// no such line, the SourceLine's Number is 0. The time grows with the position in the document.
func (d *Document) SourceLine(line, column, endLine, endColumn int) SourceLine {
	if line < 1 {
		return SourceLine{}
	}
	at := 0
	for range line - 1 {
		next := nextLine(d.Source, at)
		if next == at || next == len(d.Source) {
			return SourceLine{}
		}
		at = next
	}
	text := string(d.Source[at:lineEnd(d.Source, at)])
	from := min(max(column-1, 0), len(text))
	to := len(text)
	if endLine <= line {
		to = min(max(endColumn-1, from), len(text))
	}
	return SourceLine{Number: line, Text: text, From: from, To: to}
}

// Excerpt returns a printable form of a source line, and the line to print below it in a font of
// fixed width: "^" under the first character of line[from:to] and "~" under the others. At least
// one character is marked; if from is the line's end, the mark follows the last character. Offsets
// outside the line are moved to its nearest end.
//
// text is a line of valid UTF-8 with at most about 100 columns: hidden characters are written as
// <U+202E>, tabs become blanks, and a long line is cut to the part around from, with "…" at each
// cut. The line may contain any bytes.
func Excerpt(line string, from, to int) (text, caret string) {
	from = min(max(from, 0), len(line))
	to = min(max(to, from), len(line))
	start := max(0, from-maxExcerptBytes)
	for start < from && start > 0 && !utf8.RuneStart(line[start]) {
		start++
	}
	end := min(len(line), from+maxExcerptBytes)
	for end > from && end < len(line) && !utf8.RuneStart(line[end]) {
		end--
	}
	cells, mark, markEnd := cellsOf(line[start:end], from-start, to-start)
	first, last := window(cells, mark)
	var b strings.Builder
	if first > 0 || start > 0 {
		b.WriteString("…")
	}
	before, marked := 0, 1
	for i := first; i < last; i++ {
		if i == mark {
			before = ansi.StringWidth(b.String())
		}
		b.WriteString(cells[i].text)
		if i >= mark && i == min(markEnd, last)-1 {
			marked = ansi.StringWidth(b.String()) - before
		}
	}
	if mark == last {
		before = ansi.StringWidth(b.String())
	}
	if last < len(cells) || end < len(line) {
		b.WriteString("…")
	}
	return strings.TrimRight(b.String(), " "), strings.Repeat(" ", before) + "^" +
		strings.Repeat("~", max(0, marked-1))
}

// A cell is a printed character.
type cell struct {
	text  string
	width int // columns
}

// cellsOf splits s into printed cells. The cells mark..end represent the bytes from..to.
func cellsOf(s string, from, to int) (cells []cell, mark, end int) {
	mark, end = -1, -1
	column := 0
	for i, r := range s {
		if mark < 0 && i >= from {
			mark = len(cells)
		}
		if end < 0 && i >= to {
			end = len(cells)
		}
		c := cell{text: string(r)}
		switch {
		case r == '\t':
			c.text = strings.Repeat(" ", excerptTabs-column%excerptTabs)
		case isHidden(r):
			c.text = fmt.Sprintf("<U+%04X>", r)
		}
		c.width = ansi.StringWidth(c.text)
		column += c.width
		cells = append(cells, c)
	}
	if mark < 0 {
		mark = len(cells)
	}
	if end < 0 {
		end = len(cells)
	}
	return cells, mark, end
}

// window selects the cells to print: all, or the cells around the mark.
func window(cells []cell, mark int) (first, last int) {
	total := 0
	for _, c := range cells {
		total += c.width
	}
	if total <= maxExcerpt {
		return 0, len(cells)
	}
	first = mark
	for width := 0; first > 0 && width < excerptBefore; first-- {
		width += cells[first-1].width
	}
	last = first
	for width := 0; last < len(cells) && width < maxExcerpt; last++ {
		width += cells[last].width
	}
	return first, last
}

// appendFailures writes a line for each failing command and an excerpt of the author's line below.
func appendFailures(lines []string, failures []CommandFailure) []string {
	for i, f := range failures {
		if i == maxFailures {
			return appendParagraph(lines,
				"and "+plural(int64(len(failures)-i), "more failing command"))
		}
		lines = appendParagraph(lines, f.line())
		if f.Excerpt.Number > 0 {
			lines = f.Excerpt.appendTo(lines)
		}
	}
	return lines
}

// line returns the failure as a line of markdown.
func (f CommandFailure) line() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", f.Line, f.Column)
	}
	if text := commandText(f.Text); text != "" {
		b.WriteString(codeSpan(text) + " ")
	}
	fmt.Fprintf(&b, "exited %d", f.ExitCode)
	message := escapeMarkdown(oneLine(f.Message, maxNote))
	if message == "" {
		return b.String()
	}
	b.WriteString(" · ")
	if tool := escapeMarkdown(oneLine(f.Tool, maxName)); tool != "" {
		b.WriteString(tool + ": ")
	}
	b.WriteString(message)
	if n := f.Excerpt.Number; n > 0 && n != f.Line {
		fmt.Fprintf(&b, " (line %d)", n)
	}
	return b.String()
}

// commandText returns a command's first line, with "…" if more follows.
func commandText(s string) string {
	s = strings.TrimSpace(s)
	first, rest, _ := strings.Cut(s, "\n")
	if text := oneLine(first, maxCommandText); rest == "" || strings.HasSuffix(text, "…") {
		return text
	}
	return oneLine(first, maxCommandText-4) + " …"
}

// appendTo appends the excerpt as a fenced block. Each line begins with a number or a blank, so no
// line can close the fence.
func (l SourceLine) appendTo(lines []string) []string {
	text, caret := Excerpt(l.Text, l.From, l.To)
	number := strconv.Itoa(l.Number)
	return appendFence(lines, strings.TrimRight(number+" | "+text, " "),
		strings.Repeat(" ", len(number))+" | "+caret)
}

// appendCommands writes the table of commands in a fence, with columns separated by blanks:
// CommonMark has no tables, and a cell can contain any text.
func appendCommands(lines []string, r StepResult) []string {
	if r.Commands == nil {
		return lines
	}
	label := "commands"
	if len(r.Commands) == 0 {
		label += " · none"
	}
	if note := oneLine(r.CommandsNote, maxNote); note != "" {
		label += " · " + escapeMarkdown(note)
	}
	lines = appendParagraph(lines, label)
	if len(r.Commands) == 0 {
		return lines
	}
	rows := [][]string{{"line", "command", "language", "exit", "time", "runs", "output"}}
	for i, c := range r.Commands {
		if i == maxCommandRows {
			break
		}
		rows = append(rows, c.cells())
	}
	table := alignColumns(rows)
	if more := len(r.Commands) - maxCommandRows; more > 0 {
		table = append(table, fmt.Sprintf("[… %s cut …]", plural(int64(more), "command")))
	}
	return appendFence(lines, table...)
}

func (c CommandRow) cells() []string {
	codes := make([]string, 0, len(c.ExitCodes))
	for i, code := range c.ExitCodes {
		if i == 16 {
			codes = append(codes, "…")
			break
		}
		codes = append(codes, strconv.Itoa(code))
	}
	exit := strings.Join(codes, "|")
	if exit == "" {
		exit = "-"
	}
	output := "-"
	if c.OutputBytes >= 0 {
		output = turnstone.Bytes(c.OutputBytes).Human()
	}
	return []string{
		strconv.Itoa(c.Line), commandText(c.Text), oneLine(c.Language, maxName), exit,
		humanDuration(c.Duration), strconv.FormatInt(c.Count, 10), output,
	}
}

// alignColumns joins the cells of each row and pads them to their column's width.
func alignColumns(rows [][]string) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], ansi.StringWidth(c))
		}
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var b strings.Builder
		for i, c := range row {
			b.WriteString(c)
			b.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(c)+2))
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}
