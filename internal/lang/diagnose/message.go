package diagnose

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"turnstone.dev/turnstone/internal/brief"
)

// oneLine returns s as a message: a line of valid UTF-8 with at most maxMessage bytes, without
// control and format characters and without escape sequences.
func oneLine(s string) string {
	s = s[:min(len(s), 4*maxMessage)]
	s = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return '\uFFFD'
		case unicode.IsSpace(r):
			return ' '
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs):
			return -1
		}
		return r
	}, s)
	s = brief.Line(s)
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage - len("…")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
