package document

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"

	"turnstone.dev/turnstone"
)

// Limits of a document. There are two because a receipt may be longer than its document: one for
// the author's text and one for the file with its results.
const (
	MaxSource = 16 << 20  // bytes without results
	MaxFile   = 128 << 20 // bytes with results
	MaxSteps  = 1000

	maxErrors  = 20 // further faults are counted and not listed
	maxIgnored = 100
	maxPrefix  = 64 // columns before a line of a result, for the enclosing containers
)

// DefaultCwd is the working directory of a document without cwd.
const DefaultCwd = "/workspace"

// layout holds byte offsets in a document's source.
type layout struct {
	eol   string // the document's line ending, for generated text
	front frontLayout
	steps []stepLayout
	// the evidence of an earlier receipt
	evidence []edit
}

// A stepLayout holds the positions of a step's old and new result.
type stepLayout struct {
	insert  int    // end of the closing fence's line, before its line ending
	prefix  string // prefix of each line inside the step's containers
	cutFrom int    // the old result, including the line ending before it
	cutTo   int    // equal to cutFrom if there is no old result

	script []scriptLine // the positions of the script's lines; see position.go
}

// docParser is the state of a Parse call.
type docParser struct {
	doc    *Document
	src    []byte
	base   int // offset of the markdown text after the front matter
	lines  int // line endings before base
	blocks *blocks
	errs   SyntaxErrors
	more   int  // faults that are counted and not listed
	full   bool // too many steps: reported once
	cut    int  // bytes of old results
	claims *claimReader
}

// Parse parses a turn document or a receipt. The document keeps src, which must not be changed
// afterwards. An error is a SyntaxErrors with the first 20 faults.
func Parse(name string, src []byte) (*Document, error) { return parse(name, src, nil) }

func parse(name string, src []byte, claims *claimReader) (*Document, error) {
	p := &docParser{doc: &Document{Name: name, Source: src}, src: src, claims: claims}
	if len(src) > MaxFile {
		p.errorAt(0, fmt.Sprintf("the document has %s; the limit is %s",
			turnstone.Bytes(len(src)).Human(), turnstone.Bytes(MaxFile)),
			"pass the data to the turn as files")
		return nil, p.errs
	}
	if end := withoutEvidence(src); end < len(src) {
		p.doc.layout.evidence = []edit{{from: end, to: len(src)}}
		p.src, p.cut = src[:end], len(src)-end
	}
	p.doc.layout.eol = firstEOL(src)
	p.readFront()
	p.lines = countEOLs(src[:p.base])
	p.blocks = parseBlocks(p.src[p.base:])
	if at := p.blocks.tooDeep; at >= 0 {
		p.errorAt(p.base+at, "lists and quotes are nested too deep here",
			fmt.Sprintf("the limit is %d levels; a list counts as two", maxOpenBlocks))
	} else {
		p.walk(p.blocks.root)
		p.checkNames()
		p.readTitle()
	}
	if n := len(src) - p.cut; n > MaxSource {
		p.errorAt(0, fmt.Sprintf("the document has %s without its results; the limit is %s",
			turnstone.Bytes(n).Human(), turnstone.Bytes(MaxSource)),
			"pass the data to the turn as files")
	}
	if len(p.errs) == 0 {
		p.checkEvidence()
	}
	if len(p.errs) == 0 {
		return p.doc, nil
	}
	slices.SortStableFunc(p.errs, func(a, b SyntaxError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if p.more > 0 {
		p.errs[len(p.errs)-1].Msg += fmt.Sprintf(" (and %d more faults)", p.more)
	}
	return nil, p.errs
}

// maxTitle bounds a document's title in bytes.
const maxTitle = 200

// readTitle reads the first heading at the top level. Block parsing keeps the heading's text
// unchanged.
func (p *docParser) readTitle() {
	for n := p.blocks.root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Lines().Len() > 0 {
			seg := h.Lines().At(0)
			p.doc.Title = oneLine(
				strings.ToValidUTF8(
					string(p.src[p.base+seg.Start:min(len(p.src), p.base+seg.Stop)]), "\ufffd"),
				maxTitle)
			return
		}
	}
}

// errorAt records a fault at a byte offset of the source.
func (p *docParser) errorAt(at int, msg, hint string) {
	if len(p.errs) == maxErrors {
		p.more++
		return
	}
	at = min(at, len(p.src))
	p.errs = append(p.errs, SyntaxError{
		File:   p.doc.Name,
		Line:   1 + countEOLs(p.src[:at]),
		Column: 1 + at - lineStart(p.src, at),
		Msg:    msg,
		Hint:   hint,
	})
}

// ignore notes a word in a line that is for other tools.
func (p *docParser) ignore(line int, word string) {
	if len(p.doc.Ignored) < maxIgnored {
		p.doc.Ignored = append(p.doc.Ignored, Ignored{oneLine(word, maxName), line})
	}
}

// addStep adds the step of a fence.
func (p *docParser) addStep(f *fence) *stepLayout {
	if len(p.doc.Steps) == MaxSteps {
		if !p.full {
			p.errorAt(p.base+f.open, fmt.Sprintf("more than %d steps", MaxSteps),
				"split the document into several turns")
		}
		p.full = true
		return nil
	}
	info := string(p.src[p.base+f.info : p.base+f.infoEnd])
	s := &Step{
		Index:    len(p.doc.Steps) + 1,
		Line:     1 + p.lines + f.line,
		Language: firstWord(info),
		Script:   string(f.script),
	}
	p.doc.Steps = append(p.doc.Steps, s)
	p.readAttributes(s, info, p.base+f.info)
	if s.Name == "" {
		s.Name = fmt.Sprintf("step-%d", s.Index)
	}
	l := stepLayout{}
	if f.closed {
		l = p.layoutOf(f)
		l.script = f.lines.from(p.base, p.lines)
		if i := bytes.IndexByte(p.src[p.base+f.open:l.insert], 0); i >= 0 {
			p.errorAt(p.base+f.open+i, "a NUL byte in a step",
				"remove the byte, which no shell accepts, or write it as \\0 for printf")
		}
		if len(l.prefix) > maxPrefix {
			p.errorAt(p.base+f.open,
				fmt.Sprintf("the step is indented by more than %d columns of lists and quotes",
					maxPrefix), "move the step out of the lists and quotes")
		}
	} else {
		p.errorAt(p.base+f.open, "the fence of this step is not closed",
			"end the step with a line of "+strings.Repeat(string(p.src[p.base+f.open]),
				p.fenceLength(f))+
				", in the same list item or quote as its first line; an incomplete script does "+
				"not run")
	}
	p.doc.layout.steps = append(p.doc.layout.steps, l)
	return &p.doc.layout.steps[len(p.doc.layout.steps)-1]
}

func (p *docParser) fenceLength(f *fence) int {
	open := p.src[p.base+f.open : p.base+f.info]
	return min(len(bytes.TrimRight(open, " \t")), 80)
}

// layoutOf finds the position for the result of a closed step. The closing fence's line continues
// every container of the step, so the text before the fence is the prefix of the result's lines.
// Tabs become spaces because a tab may extend from the containers into the content.
func (p *docParser) layoutOf(f *fence) stepLayout {
	at := p.base + f.closeStart
	var b strings.Builder
	for _, c := range p.src[max(p.base, lineStart(p.src, at)):at] {
		if c == '\t' {
			b.WriteString("    "[b.Len()%4:])
		} else {
			b.WriteByte(c)
		}
	}
	prefix := b.String()
	prefix = prefix[:max(0, len(prefix)-f.closePad)]
	if strings.HasSuffix(prefix, ">") {
		prefix += " " // otherwise the quote would consume a blank of the content
	}
	end := lineEnd(p.src, at)
	return stepLayout{insert: end, prefix: prefix, cutFrom: end, cutTo: end}
}

// checkNames reports duplicate step names.
func (p *docParser) checkNames() {
	byName := map[string]*Step{}
	for _, s := range p.doc.Steps {
		first, taken := byName[s.Name]
		if !taken {
			byName[s.Name] = s
			continue
		}
		// The author cannot change a default name, so the fault is at the other step.
		at, other := s, first
		if s.Name == fmt.Sprintf("step-%d", s.Index) {
			at, other = first, s
		}
		p.errorAt(p.offsetOfStep(at),
			fmt.Sprintf("the step's name %q is also the name of step %d in line %d", at.Name,
				other.Index, other.Line),
			"give each step a name of its own")
	}
}

func (p *docParser) offsetOfStep(s *Step) int {
	for _, f := range p.blocks.fences {
		if f.step && 1+p.lines+f.line == s.Line {
			return p.base + f.open
		}
	}
	return p.base
}

// lineStart returns the start of the line that contains offset at. Line endings are LF, CRLF and
// CR.
func lineStart(src []byte, at int) int {
	if at > 0 && at < len(src) && src[at] == '\n' && src[at-1] == '\r' {
		at--
	}
	return 1 + bytes.LastIndexAny(src[:at], "\r\n")
}

// lineEnd returns the end of the line that contains offset at, before its line ending.
func lineEnd(src []byte, at int) int {
	if i := indexEOL(src[at:]); i >= 0 {
		return at + i
	}
	return len(src)
}

// nextLine returns the start of the line after the line that contains offset at.
func nextLine(src []byte, at int) int {
	end := lineEnd(src, at)
	return end + len(eolAt(src, end))
}

// eolAt returns the line ending at offset i, or "".
func eolAt(src []byte, i int) string {
	switch {
	case i >= len(src):
		return ""
	case src[i] == '\n':
		return "\n"
	case src[i] == '\r' && i+1 < len(src) && src[i+1] == '\n':
		return "\r\n"
	case src[i] == '\r':
		return "\r"
	}
	return ""
}

func indexEOL(src []byte) int {
	n := bytes.IndexByte(src, '\n')
	if n < 0 {
		return bytes.IndexByte(src, '\r')
	}
	if r := bytes.IndexByte(src[:n], '\r'); r >= 0 {
		return r
	}
	return n
}

func firstEOL(src []byte) string {
	if i := indexEOL(src); i >= 0 {
		return eolAt(src, i)
	}
	return "\n"
}

func countEOLs(src []byte) int {
	return bytes.Count(src, []byte("\n")) + bytes.Count(src, []byte("\r")) - bytes.Count(src,
		[]byte("\r\n"))
}
