// Package brief shortens texts for messages and reports.
package brief

import "strings"

// Clip returns s if s has at most n bytes. Otherwise Clip returns the whole characters within the
// first n bytes, without invalid UTF-8, and an ellipsis.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// Subject clips an untrusted text for the subject of an error.
func Subject(s string) string { return Clip(s, 200) }

// Line folds s to one line: each run of white space becomes a single space.
func Line(s string) string { return strings.Join(strings.Fields(s), " ") }
