package pg

import "strings"

// Placeholders returns SQL with PostgreSQL's placeholders ($1) in place of SQLite's (? and ?1), so
// that a statement is written once. A question mark in a string or a comment must not occur.
func Placeholders(text string) string {
	if !strings.Contains(text, "?") {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 16)
	n := 0
	for i := 0; i < len(text); i++ {
		if text[i] != '?' {
			b.WriteByte(text[i])
			continue
		}
		b.WriteByte('$')
		if i+1 < len(text) && '0' <= text[i+1] && text[i+1] <= '9' {
			continue // its number follows
		}
		n++
		writeNumber(&b, n)
	}
	return b.String()
}

func writeNumber(b *strings.Builder, n int) {
	if n >= 10 {
		writeNumber(b, n/10)
	}
	b.WriteByte(byte('0' + n%10))
}
