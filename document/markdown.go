package document

import (
	"bytes"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// maxOpenBlocks bounds the nesting of blocks; a list and its item count as two. The parser's time
// per line and its stack grow with the depth.
const maxOpenBlocks = 64

// A fence describes a fenced code block in the source. Offsets refer to the text given to
// parseBlocks.
type fence struct {
	open       int // of the first fence character
	line       int // of the opening fence, from 0
	info       int // start of the info string, trimmed
	infoEnd    int
	step       bool   // the first word is bash or sh
	indent     int    // columns before the opening fence, in its container
	script     []byte // the content; kept only for steps
	lines      scriptLines
	closed     bool // closed by a closing fence, not by the end of the container or file
	closeStart int  // start of the closing fence's line inside its container
	closePad   int  // columns of a split tab before closeStart
}

// blocks is the block structure of a markdown text.
type blocks struct {
	root    ast.Node
	fences  map[ast.Node]*fence
	tooDeep int // offset of a block whose nesting is too deep, or -1
}

// parseBlocks parses the block structure of body as CommonMark defines it.
//
// The parser gets a copy of the same length with three changes. A lone CR becomes a line ending, as
// in CommonMark and unlike goldmark. The CR of a CRLF becomes a space, which has no meaning at the
// end of a line. Form feed and vertical tab, which are blanks in goldmark and not in CommonMark,
// become ordinary characters. Offsets in the copy are offsets in body.
func parseBlocks(body []byte) *blocks {
	b := &blocks{fences: map[ast.Node]*fence{}, tooDeep: -1}
	watch := func(v util.PrioritizedValue) util.PrioritizedValue {
		switch v.Priority {
		case priorityOf(parser.NewFencedCodeBlockParser()):
			v.Value = &fenceWatcher{v.Value.(parser.BlockParser), b, body}
		case priorityOf(parser.NewListParser()), priorityOf(parser.NewBlockquoteParser()):
			v.Value = &depthLimiter{v.Value.(parser.BlockParser), b}
		}
		return v
	}
	var parsers []util.PrioritizedValue
	for _, v := range parser.DefaultBlockParsers() {
		parsers = append(parsers, watch(v))
	}
	// No inline parsers: only blocks matter here, and inline parsing costs time.
	p := parser.NewParser(
		parser.WithBlockParsers(parsers...),
		parser.WithParagraphTransformers(util.Prioritized(boundedReferences{}, 100)),
	)
	b.root = p.Parse(text.NewReader(normalize(body)))
	return b
}

// priorityOf returns goldmark's default priority of p.
func priorityOf(p parser.BlockParser) int {
	for _, v := range parser.DefaultBlockParsers() {
		if v.Value == p {
			return v.Priority
		}
	}
	return -1
}

func normalize(body []byte) []byte {
	if !bytes.ContainsAny(body, "\r\f\v") {
		return body
	}
	out := bytes.Clone(body)
	for i, c := range out {
		switch {
		case c == '\f' || c == '\v':
			out[i] = 0x01
		case c == '\r' && i+1 < len(out) && out[i+1] == '\n':
			out[i] = ' '
		case c == '\r':
			out[i] = '\n'
		}
	}
	return out
}

// A depthLimiter rejects containers that are nested too deep.
type depthLimiter struct {
	parser.BlockParser
	blocks *blocks
}

func (l *depthLimiter) Open(parent ast.Node, reader text.Reader,
	pc parser.Context) (ast.Node, parser.State) {
	if len(pc.OpenedBlocks()) < maxOpenBlocks {
		return l.BlockParser.Open(parent, reader, pc)
	}
	if l.blocks.tooDeep < 0 {
		_, seg := reader.PeekLine()
		l.blocks.tooDeep = seg.Start
	}
	return nil, parser.NoChildren
}

// maxReferenceLines bounds the paragraphs that are searched for link reference definitions:
// goldmark's time for a paragraph is quadratic in its lines.
const maxReferenceLines = 256

// boundedReferences removes link reference definitions from a paragraph. They affect the block
// structure in a single case: a line of "===" below a paragraph that contains only definitions is
// not a heading underline. Below a paragraph longer than maxReferenceLines it is taken for a
// heading underline.
type boundedReferences struct{}

func (boundedReferences) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	if node.Lines().Len() <= maxReferenceLines {
		parser.LinkReferenceParagraphTransformer.Transform(node, reader, pc)
	}
}

// A fenceWatcher lets goldmark identify fenced code blocks and records their positions: goldmark's
// tree contains neither the end of a block nor whether the block was closed.
type fenceWatcher struct {
	parser.BlockParser
	blocks *blocks
	src    []byte
}

func (w *fenceWatcher) Open(parent ast.Node, reader text.Reader,
	pc parser.Context) (ast.Node, parser.State) {
	line, seg := reader.PeekLine()
	lineNo, _ := reader.Position()
	node, state := w.BlockParser.Open(parent, reader, pc)
	if node == nil {
		return nil, state
	}
	at := seg.Start - seg.Padding + pc.BlockOffset()
	f := &fence{open: at, line: lineNo, indent: pc.BlockIndent(), info: seg.Stop, infoEnd: seg.Stop}
	i := pc.BlockOffset()
	for i < len(line) && line[i] == line[pc.BlockOffset()] {
		i++
	}
	rest := line[min(i, len(line)):]
	trimmed := bytes.TrimLeft(rest, " \t\n")
	f.info = seg.Start - seg.Padding + i + len(rest) - len(trimmed)
	f.infoEnd = f.info + len(bytes.TrimRight(trimmed, " \t\n"))
	f.step = isShell(firstWord(string(w.src[f.info:f.infoEnd])))
	w.blocks.fences[node] = f
	return node, state
}

func (w *fenceWatcher) Continue(node ast.Node, reader text.Reader, pc parser.Context) parser.State {
	_, seg := reader.PeekLine()
	column := reader.LineOffset()
	lineNo, _ := reader.Position()
	state := w.BlockParser.Continue(node, reader, pc)
	f := w.blocks.fences[node]
	if state&parser.Close != 0 {
		f.closed, f.closeStart, f.closePad = true, seg.Start, seg.Padding
	} else if f.step {
		at := len(f.script)
		var pad, cut int
		f.script, pad, cut = appendContent(f.script, w.src[seg.Start:seg.Stop], column,
			seg.Padding, f.indent)
		source := seg.Start + cut
		if source > 0 && source < len(w.src) && w.src[source] == '\n' && w.src[source-1] == '\r' {
			source-- // a list item consumed the CR as a blank
		}
		f.lines.add(at, source, lineNo, pad)
	}
	return state
}

// appendContent appends a line of a fenced code block: without the indentation of its opening
// fence, with the rest of a split tab as spaces (CommonMark 0.31, sections 2.2 and 4.5), and with
// "\n" for any line ending. goldmark's own content is not used because it can include bytes of the
// container's marker when a tab is split. appendContent returns how many spaces replace a split
// tab, and how many bytes of the line precede its text.
func appendContent(dst, line []byte, column, padding, indent int) (out []byte, pad, cut int) {
	take := min(padding, indent)
	padding, indent, column = padding-take, indent-take, column+take
	for indent > 0 && len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		width := 1
		if line[0] == '\t' {
			width = 4 - column%4
		}
		padding = max(0, width-indent)
		indent, column, line = max(0, indent-width), column+width, line[1:]
		cut++
	}
	dst = append(dst, bytes.Repeat([]byte(" "), padding)...)
	dst = append(dst, bytes.TrimRight(line, "\r\n")...)
	return append(dst, '\n'), padding, cut
}
