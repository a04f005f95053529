package document

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/suggest"
)

// A SyntaxError is one fault of a document, with the place where it stands.
type SyntaxError struct {
	File   string     // the document's name
	Line   int        // from 1
	Column int        // from 1, in bytes
	Msg    string     // what is wrong, one line
	Hint   string     // what the author can do; may be empty
	Source SourceLine // the author's line, where it helps; Number 0: none
}

// Error returns "file:line:column: message".
func (e SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// SyntaxErrors are the faults that Parse found, in the order of the document.
// It is never empty.
type SyntaxErrors []SyntaxError

// Error returns one line for each fault.
func (es SyntaxErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the project's typed error, so that turnstone.KindOf and
// turnstone.HintOf work on a SyntaxErrors as on any other error.
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

// nearest returns the known word that somebody most likely meant.
func nearest(word string, known []string) string {
	near, _ := suggest.Nearest(word, known)
	return near
}
