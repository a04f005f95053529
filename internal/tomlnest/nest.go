// Package tomlnest bounds the nesting of TOML from strangers. The parser needs time and memory in
// proportion to the square of the nesting: gigabytes for a text of 64 KiB.
package tomlnest

import (
	"errors"
	"strings"

	"github.com/BurntSushi/toml"
)

// Max is how deep keys and values may be nested.
const Max = 32

var errDeep = errors.New("its keys or values are nested too deeply")

// Decode decodes a text that Check accepts into v.
func Decode(text string, v any) (toml.MetaData, error) {
	if err := Check(text); err != nil {
		return toml.MetaData{}, err
	}
	return toml.Decode(text, v)
}

// Check refuses a text whose nesting is deeper than Max. It does not need to be TOML: what Check takes
// for the inside of a string, the parser takes for that too, or fails there.
func Check(text string) error {
	open, dots := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"', '\'':
			i += skipString(text[i:]) - 1
		case '#':
			i += endOf(text[i:], "\n") - 1
		case '[', '{':
			open, dots = open+1, 0
		case ']', '}':
			open, dots = max(open-1, 0), 0
		case '.':
			dots++
		case '\n', '=', ',':
			dots = 0
		}
		if open > Max || dots > Max {
			return errDeep
		}
	}
	return nil
}

// skipString returns the length of the string at the beginning of a text.
func skipString(text string) int {
	quote := text[:1]
	if long := strings.Repeat(quote, 3); strings.HasPrefix(text, long) {
		n := 3 + endOfString(text[3:], long)
		for range 2 { // the last of its characters may be quotes
			if strings.HasPrefix(text[n:], quote) {
				n++
			}
		}
		return n
	}
	return 1 + endOfString(text[1:], quote)
}

// endOfString returns where the text of a string and its quote have ended. A string of one line ends
// with its line.
func endOfString(text, quote string) int {
	for i := 0; i < len(text); i++ {
		switch {
		case quote[0] == '"' && text[i] == '\\' && !strings.HasPrefix(text[i+1:], "\n"):
			i++
		case len(quote) == 1 && text[i] == '\n':
			return i
		case strings.HasPrefix(text[i:], quote):
			return i + len(quote)
		}
	}
	return len(text)
}

// endOf returns where the first mark in a text begins, or the text's length.
func endOf(text, mark string) int {
	if i := strings.Index(text, mark); i >= 0 {
		return i
	}
	return len(text)
}
