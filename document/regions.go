package document

import (
	"fmt"

	"github.com/yuin/goldmark/ast"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// The comments around a result. Only an HTML block on a line by itself counts as such a comment: a
// step's output is inside a fence and cannot imitate it.
const endMarker = "<!-- /turn:result -->"

var (
	reservedComment = lazyregexp.New(`^[ \t]*<!--[ \t\r\n]*/?turn:result\b`)
	beginComment    = lazyregexp.New(`^<!-- turn:result( [a-z]+=[A-Za-z0-9:._-]+)+ -->$`)
)

// markerWindow bounds how much of a comment is inspected for a reserved word.
const markerWindow = 128

type markerKind int

const (
	notMarker markerKind = iota
	beginMark
	endMark
	badMark // begins like a marker and is not valid
)

func beginMarker(s *Step) string {
	return fmt.Sprintf("<!-- turn:result step=%d name=%s source=%s -->", s.Index, s.Name,
		turnstone.DigestBytes([]byte(s.Script)))
}

// marker returns the kind of marker n is, and the position of its line in the source.
func (p *docParser) marker(n ast.Node) (kind markerKind, at int) {
	h, ok := n.(*ast.HTMLBlock)
	if !ok || h.HTMLBlockType != ast.HTMLBlockType2 || h.Lines().Len() == 0 {
		return notMarker, 0
	}
	seg := h.Lines().At(0)
	at = p.base + seg.Start
	if !reservedComment.Match(p.src[at:min(len(p.src), at+markerWindow)]) {
		return notMarker, at
	}
	line := trimBlanks(p.src[at:lineEnd(p.src, at)])
	switch {
	case h.Lines().Len() == 1 && string(line) == endMarker:
		return endMark, at
	case h.Lines().Len() == 1 && beginComment.Match(line):
		return beginMark, at
	}
	return badMark, at
}

// walk finds the steps below parent, in order, and the result after each step.
func (p *docParser) walk(parent ast.Node) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		f := p.blocks.fences[n]
		if p.cutEvidence(n) {
			continue
		}
		if f == nil || !f.step {
			n = p.checkStray(n)
			p.walk(n)
			continue
		}
		l := p.addStep(f)
		next := n.NextSibling()
		if next == nil {
			continue
		}
		if kind, at := p.marker(next); kind == beginMark {
			n = p.result(next, at, l)
		}
	}
}

// checkStray reports a marker in a wrong place. A result without a step is rejected because a
// receipt would present it as a result of its turn. checkStray returns the last inspected node.
func (p *docParser) checkStray(n ast.Node) ast.Node {
	kind, at := p.marker(n)
	switch kind {
	case beginMark:
		p.errorAt(at, "this result is not directly below a step",
			"delete it, up to "+endMarker+"; a result must directly follow its step")
		if end, _, _ := p.findEnd(n); end != nil {
			return end
		}
	case endMark:
		p.errorAt(at, "a result ends here without a beginning", "delete the line")
	case badMark:
		p.errorAt(at, "a comment that begins with turn:result and does not have the form that "+
			"turn writes", "delete the comment, or begin it with another word")
	}
	return n
}

// findEnd returns the end marker that belongs to begin, and the first node between them that cannot
// be part of a generated result.
func (p *docParser) findEnd(begin ast.Node) (end, foreign ast.Node, at int) {
	for n := begin.NextSibling(); n != nil; n = n.NextSibling() {
		kind, markAt := p.marker(n)
		switch {
		case kind == endMark:
			return n, foreign, markAt
		case kind != notMarker:
			return nil, foreign, 0
		case foreign != nil:
		case n.Kind() == ast.KindFencedCodeBlock && !p.blocks.fences[n].step:
		case n.Kind() == ast.KindParagraph, n.Kind() == ast.KindTextBlock:
		default:
			foreign = n
		}
	}
	return nil, foreign, 0
}

// result records the old result that begins with the marker at the given offset, and returns the
// result's last node.
func (p *docParser) result(begin ast.Node, at int, l *stepLayout) ast.Node {
	end, foreign, endAt := p.findEnd(begin)
	if end == nil {
		p.errorAt(at, "this result has no end: "+endMarker+" is missing",
			"restore the line, or delete the rest of the old result")
		return begin
	}
	if foreign != nil {
		p.errorAt(p.offsetOf(foreign, at),
			"this text is inside a result and would be lost when the document runs",
			"move it below "+endMarker)
	}
	p.claims.result(p, begin, end, at)
	from := lineStart(p.src, at)
	from -= len(eolBefore(p.src, from))
	to := lineEnd(p.src, endAt)
	p.cut += to - from
	if l != nil {
		l.cutFrom, l.cutTo = from, to
	}
	return end
}

// offsetOf returns n's offset in the source, or fallback if n has none.
func (p *docParser) offsetOf(n ast.Node, fallback int) int {
	if f := p.blocks.fences[n]; f != nil {
		return p.base + f.open
	}
	if at := n.Pos(); at >= 0 {
		return min(p.base+at, len(p.src))
	}
	return fallback
}

// eolBefore returns the line ending that ends at offset i, or "".
func eolBefore(src []byte, i int) string {
	switch {
	case i >= 2 && src[i-1] == '\n' && src[i-2] == '\r':
		return "\r\n"
	case i >= 1 && (src[i-1] == '\n' || src[i-1] == '\r'):
		return string(src[i-1 : i])
	}
	return ""
}

func trimBlanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}
