package mcpdoor

import "strings"

// maxRef bounds a reference in bytes.
const maxRef = 300

// ref returns the reference of an argument as executors read it: @3, @branch and 3 are in the session of the call,
// and nothing is that session.
func (t target) ref(name, text string) (string, error) {
	switch {
	case len(text) > maxRef || strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r == 0x7f
	}):
		return "", argument(name, "is no reference").WithHint("write @3, @branch, SESSION@3 or a turn's ID")
	case text == "":
		return t.session, t.named()
	case strings.HasPrefix(text, "@"), strings.HasPrefix(text, "~"):
		return t.session + text, t.named()
	case strings.Trim(text, "0123456789") == "":
		return t.session + "@" + text, t.named()
	}
	return text, nil
}

// named reports that neither the call nor its connection has a session.
func (t target) named() error {
	if t.session != "" {
		return nil
	}
	return argument("session", "is missing").WithHint("name the session that an earlier result has, " +
		"or write SESSION@3 or a turn's ID")
}
