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

// otherNames maps words to the known key or attribute that an author means by them. A key with such a
// word is an error, because ignoring it would remove a setting.
var otherNames = map[string]string{"environment": "env", "envs": "env", "vars": "env", "variables": "env",
	"workdir": "cwd", "dir": "cwd", "directory": "cwd", "mem": "memory", "ram": "memory", "cpu": "cpus", "cores": "cpus",
	"network": "network", "networking": "network", "net": "network", "internet": "network", "offline": "network",
	"hosts": "network", "egress": "network", "timeout": "timeout", "deadline": "timeout", "limit": "timeout",
	"memory": "memory", "disk": "disk", "env": "env", "cwd": "cwd", "cpus": "cpus", "retry": "retry", "retries": "retry",
	"isolation": "isolation", "isolated": "isolation", "snapshot": "snapshot", "checkpoint": "checkpoint", "deterministic": "deterministic",
	"lifetime": "lifetime", "skip": "skip", "continue": "continue-on-error", "unparsed": "unparsed"}

// foreign are common words of other tools that differ from a known word by one letter or two.
var foreign = map[string]bool{"version": true, "block": true, "lock": true, "end": true, "cmd": true, "copy": true}

// misspelling returns the known word that is most similar to the given word, and whether the author
// probably meant it: at most a quarter of the letters (at least one) differ, two adjacent letters are
// swapped, or otherNames has a part of the word.
func misspelling(word string, known []string) (near string, probably bool) {
	word = word[:min(len(word), maxName)]
	for _, part := range append(parts(word), strings.ToLower(word)) {
		if name := otherNames[part]; slices.Contains(known, name) {
			return name, true
		}
	}
	near, edits := suggest.Nearest(word, known)
	return near, (edits <= max(1, len(near)/4) || swapped(word, near)) && !foreign[strings.ToLower(word)]
}

// parts splits a word at characters other than letters, and between a lower-case and an upper-case
// letter. The parts are in lower case.
func parts(word string) (all []string) {
	from := 0
	for i := 0; i <= len(word); i++ {
		letter := i < len(word) && (word[i]|0x20 >= 'a' && word[i]|0x20 <= 'z')
		if letter && !(i > from && word[i] < 'a' && word[i-1] >= 'a') {
			continue
		}
		if i > from {
			all = append(all, strings.ToLower(word[from:i]))
		}
		if from = i; !letter {
			from++
		}
	}
	return all
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
