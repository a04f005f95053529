package bisect

import (
	"strings"

	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lang/syntax"
)

// A unit is a command at the top level of a step: a document can end after it.
type unit struct {
	step  int // index in the document's steps
	start int // in the step's script
	end   int // where the next unit begins
	line  int // in the document
	text  string
}

// units returns the commands at the top level of the document's steps. Commands between which a
// script cannot be cut are one unit.
func units(doc *document.Document) (all []unit) {
	for i, s := range doc.Steps {
		if s.Skip {
			continue
		}
		script := syntax.ParseAs([]byte(s.Script), s.Language)
		first, heredoc := len(all), 0
		for _, c := range script.Commands {
			if c.Parent == -1 && c.Span.Start >= heredoc {
				if len(all) > first {
					all[len(all)-1].end = c.Span.Start
				}
				all = append(all, unit{step: i, start: c.Span.Start, end: len(s.Script),
					line: doc.Position(s, c.Span.Start).Line})
			}
			for _, h := range c.Heredocs {
				if !h.String { // its body and its delimiter follow the line
					heredoc = max(heredoc, h.Span.End+1)
				}
			}
		}
		if len(all) == first && strings.TrimSpace(s.Script) != "" {
			all = append(all, unit{step: i, end: len(s.Script), line: s.Line + 1})
		}
		for n := first; n < len(all); n++ {
			all[n].text = strings.TrimSpace(s.Script[all[n].start:all[n].end])
		}
	}
	return all
}

// cut ends doc after the unit u.
func cut(doc *document.Document, u unit) {
	doc.Steps[u.step].Script = doc.Steps[u.step].Script[:u.end]
	for _, s := range doc.Steps[u.step+1:] {
		s.Skip = true
	}
}
