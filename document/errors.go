package document

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
)

// A SyntaxError is one fault of a document, with the place where it stands.
type SyntaxError struct {
	File   string // the document's name
	Line   int    // from 1
	Column int    // from 1, in bytes
	Msg    string // what is wrong, one line
	Hint   string // what the author can do; may be empty
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
	e := &turnstone.Error{Op: "document.parse", Kind: turnstone.Invalid}
	for _, s := range es {
		e.Subject = s.File
		if e.Hint == "" {
			e.Hint = s.Hint
		}
	}
	return e
}

// nearest returns the known word with the fewest edits between it and word.
func nearest(word string, known []string) string {
	best, fewest := "", -1
	for _, k := range known {
		if d := editDistance(word, k); fewest < 0 || d < fewest {
			best, fewest = k, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance in bytes. Only the first 64 bytes of
// a count, so that a hostile word costs little.
func editDistance(a, b string) int {
	a, b = strings.ToLower(a[:min(len(a), 64)]), strings.ToLower(b[:min(len(b), 64)])
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
