package document

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/suggest"
)

// A SyntaxError is a fault of a document with its position.
type SyntaxError struct {
	File   string     // the document's name
	Line   int        // from 1
	Column int        // from 1, in bytes
	Msg    string     // the fault, one line
	Hint   string     // how the author can fix the fault; may be empty
	Source SourceLine // the author's line, where useful; Number 0: none
}

// Error returns "file:line:column: message".
func (e SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// SyntaxErrors are the faults that Parse found, in document order. The list is never empty.
type SyntaxErrors []SyntaxError

// Error returns a line for each fault.
func (es SyntaxErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the project's typed error, so that turnstone.KindOf and turnstone.HintOf accept a
// SyntaxErrors.
func (es SyntaxErrors) Unwrap() error {
	e := turnstone.NewError("document.parse", turnstone.KindInvalid, "", nil)
	for _, s := range es {
		e.Subject = s.File
		if e.Hint == "" {
			e.Hint = s.Hint
		}
	}
	return e
}

// nearest returns the known word that is most similar to the given word.
func nearest(word string, known []string) string {
	near, _ := suggest.Nearest(word, known)
	return near
}
