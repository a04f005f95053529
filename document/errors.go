package document

import (
	"fmt"
	"slices"
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

// otherNames are what neighbours of turn call something of ours.
var otherNames = map[string]string{"environment": "env", "workdir": "cwd", "working_dir": "cwd", "working_directory": "cwd",
	"ram": "memory"}

// misspelling returns the known word that is most similar to the given word, and whether the author probably meant it:
// every third letter may differ, or two neighbours are swapped, or a further word follows. A version is what documents
// have for other tools, though it is near to session.
func misspelling(word string, known []string) (near string, probably bool) {
	plain := strings.ReplaceAll(strings.ToLower(word[:min(len(word), maxName)]), "-", "_")
	if near = otherNames[plain]; slices.Contains(known, near) {
		return near, true
	}
	if first, _, more := strings.Cut(plain, "_"); more && slices.Contains(known, first) {
		return first, true
	}
	near, edits := suggest.Nearest(word, known)
	return near, (edits <= max(1, len(near)/3) || swapped(word, near)) && word != "version"
}

// swapped reports whether two words differ by the order of two neighbours.
func swapped(a, b string) bool {
	for i := 1; i < len(a) && len(a) == len(b); i++ {
		if a[i-1] != b[i-1] {
			return a[i-1] == b[i] && a[i] == b[i-1] && a[i+1:] == b[i+1:]
		}
	}
	return false
}

// nearest returns the known word that is most similar to the given word.
func nearest(word string, known []string) string {
	near, _ := suggest.Nearest(word, known)
	return near
}
