package document

import (
	"bytes"
	"slices"

	"github.com/yuin/goldmark/ast"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

// The evidence of a receipt is an HTML comment after its last byte: a line ending, evidenceBegin, one line of text,
// evidenceEnd. Its line endings are CRLF if the receipt's first one is, otherwise LF; receipts of earlier versions
// have LF always. docs/chain.md specifies it.
const (
	evidenceBegin = "<!-- turn:evidence"
	evidenceEnd   = "-->"
)

// MaxEvidence bounds the text of a receipt's evidence in bytes.
const MaxEvidence = 1 << 20

var (
	// A comment of this form at the end of a file is evidence whose line endings, or whose text,
	// somebody has changed. It is removed before the document runs.
	oldEvidence  = lazyregexp.New(`(?:\r\n|\n|\r)<!--[ \t]*turn:evidence[ \t\r\n][^<>]*-->[ \t\r\n]*$`)
	evidenceMark = lazyregexp.New(`^[ \t]*<!--[ \t]*turn:evidence(?:[ \t\r\n]|$)`)
)

// WithEvidence returns a receipt with evidence at its end. evidence is a single line of text
// without "<" and ">".
func WithEvidence(receipt, evidence []byte) []byte {
	eol := "\n"
	if firstEOL(receipt) == "\r\n" {
		eol = "\r\n"
	}
	return slices.Concat(receipt, []byte(eol+evidenceBegin+eol), evidence, []byte(eol+evidenceEnd+eol))
}

// CutEvidence returns the text of a receipt and the evidence at its end. Without evidence, or with evidence in another
// spelling than that of WithEvidence, or of earlier versions, found is false, and text is file.
func CutEvidence(file []byte) (text, evidence []byte, found bool) {
	for _, eol := range []string{"\n", "\r\n"} {
		body, ok := bytes.CutSuffix(file, []byte(eol+evidenceEnd+eol))
		if !ok {
			continue
		}
		line := bytes.LastIndexByte(body, '\n') + 1
		text, ok = bytes.CutSuffix(body[:line], []byte(eol+evidenceBegin+eol))
		evidence = body[line:]
		if ok && len(evidence) <= MaxEvidence && !bytes.ContainsAny(evidence, "<>\r") &&
			(eol == "\n" || firstEOL(text) == eol) {
			return text, evidence, true
		}
	}
	return file, nil, false
}

// HasEvidence reports whether a file contains a comment that is evidence, or was.
func HasEvidence(file []byte) bool {
	for line := range bytes.Lines(bytes.ReplaceAll(file, []byte("\r"), []byte("\n"))) {
		if evidenceMark.Match(line) {
			return true
		}
	}
	return false
}

// withoutEvidence returns the length of src without evidence at its end, in any spelling. The
// evidence is not markdown: the text before may end inside a fence.
func withoutEvidence(src []byte) int {
	for {
		text, _, found := CutEvidence(src)
		if !found {
			from := max(0, len(src)-2*MaxEvidence)
			at := oldEvidence.FindIndex(src[from:])
			if at == nil {
				return len(src)
			}
			text = src[:from+at[0]]
		}
		src = text
	}
}

// cutEvidence records evidence that is not at the end of the document, because somebody has added
// text below it.
func (p *docParser) cutEvidence(n ast.Node) bool {
	h, ok := n.(*ast.HTMLBlock)
	if !ok || h.HTMLBlockType != ast.HTMLBlockType2 || h.Lines().Len() == 0 {
		return false
	}
	at := p.base + h.Lines().At(0).Start
	if !evidenceMark.Match(p.src[at:min(len(p.src), at+markerWindow)]) {
		return false
	}
	end := p.base + h.Lines().At(h.Lines().Len()-1).Stop
	if h.HasClosure() {
		end = p.base + h.ClosureLine.Stop
	}
	from := lineStart(p.src, at)
	from -= len(eolBefore(p.src, from))
	end = min(end, len(p.src))
	end -= len(eolBefore(p.src, end))
	end = max(end, from)
	p.cut += end - from
	p.doc.layout.evidence = append(p.doc.layout.evidence, edit{from: from, to: end})
	return true
}

// checkEvidence refuses a document that ends with evidence once the evidence below it is removed: markdown reads the
// former as a part of another comment, so no text comes out that is sure to be the author's.
func (p *docParser) checkEvidence() {
	if len(p.doc.layout.evidence) == 0 {
		return
	}
	if clean := p.doc.Clean(); withoutEvidence(clean) < len(clean) {
		p.errorAt(p.doc.layout.evidence[0].from, "this evidence is below other evidence, which is part of a comment",
			"remove both: the comments that begin with turn:evidence")
	}
}
