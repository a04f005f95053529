package document

import (
	"fmt"
	"strings"
)

// A Transfer copies a file or folder between the host and the sandbox, in either direction, from
// Path to Dest.
type Transfer struct {
	Path string
	Dest string // empty: the same name in the working directory
}

// ParseTransfer splits PATH[:DEST] at its last colon, as files: in front matter has it. A path that
// contains a colon is written with one more colon at its end, such as "12:30.csv:".
func ParseTransfer(s string) (Transfer, error) {
	t := Transfer{Path: s}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		t.Path, t.Dest = s[:i], s[i+1:]
	}
	if t.Path == "" {
		return t, fmt.Errorf("%q: write PATH or PATH:DEST", s)
	}
	return t, nil
}
