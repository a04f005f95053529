package turnstone

import (
	"fmt"
	"strings"
)

// Maximum lengths of names in bytes.
const (
	MaxName   = 64  // of a session or a home
	MaxBranch = 100 // of a branch or a tag
)

// The kinds of objects that CheckName accepts.
const (
	NameOfSession = "session"
	NameOfHome    = "home"
	NameOfBranch  = "branch"
	NameOfTag     = "tag"
)

// CheckName reports why name is not a valid name for an object of kind what; the error is of kind
// KindInvalid. The name of a session or a home is 1 to MaxName letters, digits, ".", "_" and "-",
// and begins with a letter or a digit. The name of a branch or a tag is 1 to MaxBranch bytes: one
// or more such parts with "/" between them, where no part contains ".." or ends with "." or
// ".lock". Git therefore accepts every name of a branch (git-check-ref-format(1)), and no name
// leads out of a folder.
func CheckName(what, name string) error {
	e := &Error{Op: "name", Kind: KindInvalid, Subject: what,
		Err:  fmt.Errorf("%.80q is not a valid name", name),
		Hint: `use up to 64 letters, digits, ".", "_" and "-", beginning with a letter or a digit`}
	if what != NameOfBranch && what != NameOfTag {
		if len(name) > MaxName || !namePart(name) {
			return e
		}
		return nil
	}
	e.Hint = `use up to 100 letters, digits, ".", "_" and "-", with "/" between parts, ` +
		`each beginning with a letter or a digit, such as fix/auth`
	if len(name) > MaxBranch {
		return e
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case !namePart(part):
			return e
		case strings.Contains(part, ".."), strings.HasSuffix(part, "."),
			strings.HasSuffix(strings.ToLower(part), ".lock"):
			e.Err = fmt.Errorf("%.80q is not a valid name: no part may contain .. or end with . or .lock",
				name)
			return e
		}
	}
	return nil
}

// namePart reports whether s begins with a letter or a digit and otherwise contains only these and
// ".", "_" and "-".
func namePart(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// TurnWord is the prefix of a turn's short name in the current session: TurnWord and the turn's
// number, such as "turn-6".
const TurnWord = "turn-"

// ReadsAsTurn reports whether name is TurnWord followed by digits, a name that sessions, branches
// and tags may not have.
func ReadsAsTurn(name string) bool {
	digits, ok := strings.CutPrefix(name, TurnWord)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// CutRange cuts a reference FROM..TO; is reports whether it has both.
func CutRange(ref string) (from, to string, is bool) {
	at := max(0, strings.Index(ref, "@")) // names of sessions may contain ".."
	from, to, is = strings.Cut(ref[at:], "..")
	return ref[:at] + from, to, is
}
