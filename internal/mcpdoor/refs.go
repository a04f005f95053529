package mcpdoor

import (
	"strings"

	"turnstone.dev/turnstone"
)

// maxRef bounds a reference in bytes.
const maxRef = 300

// ref returns a reference as executors read it: @3, @branch and 3 are in the session of the call,
// and nothing is that session.
func (t target) ref(text string) (string, error) {
	switch {
	case len(text) > maxRef || strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r == 0x7f
	}):
		return "", turnstone.Errorf("mcp.call", turnstone.KindInvalid, "the turn",
			"is no reference").WithHint("write @3, @branch, SESSION@3 or a turn's ID")
	case text == "":
		return t.session, nil
	case strings.HasPrefix(text, "@"), strings.HasPrefix(text, "~"):
		return t.session + text, nil
	case strings.Trim(text, "0123456789") == "":
		return t.session + "@" + text, nil
	}
	return text, nil
}
