// Package exports reads the state that a shell leaves for the next one: its directory, its exported
// variables and functions, as bash and sh print them. The text is untrusted.
package exports

import (
	"bytes"
	"errors"
	"strings"

	"turnstone.dev/turnstone/internal/guest/files"
)

// A State is the state that a step's shell left for the next step.
type State struct {
	Cwd  string
	Vars []string // NAME=VALUE
	Funs []string // exported functions, as bash passes them: BASH_FUNC_name%%=() {…
}

// ErrMalformed is the error of a text that no shell prints.
var ErrMalformed = errors.New("malformed state")

// ParseBash reads the output of bash: the working directory and a newline, the output of
// "export -p", and that of "export -fp"; a NUL ends each.
func ParseBash(data []byte) (State, error) {
	parts := bytes.Split(data, []byte{0})
	if len(parts) != 4 || len(parts[3]) != 0 {
		return State{}, ErrMalformed
	}
	var c State
	var err error
	if c.Cwd, err = parseCwd(parts[0]); err != nil {
		return State{}, err
	}
	if c.Vars, err = parseExports(string(parts[1])); err != nil {
		return State{}, err
	}
	c.Funs = parseFunctions(string(parts[2]))
	return c, nil
}

// ParseSh reads the output of sh: the working directory and a newline, and NAME=VALUE for
// each variable; a NUL ends each.
func ParseSh(data []byte) (State, error) {
	cwd, rest, ok := bytes.Cut(data, []byte{0})
	if !ok {
		return State{}, ErrMalformed
	}
	var c State
	var err error
	if c.Cwd, err = parseCwd(cwd); err != nil {
		return State{}, err
	}
	for len(rest) > 0 {
		var entry []byte
		if entry, rest, ok = bytes.Cut(rest, []byte{0}); !ok {
			return State{}, ErrMalformed // truncated
		}
		if name, _, ok := strings.Cut(string(entry), "="); ok && Carries(name) {
			c.Vars = append(c.Vars, string(entry))
		}
	}
	return c, nil
}

func parseCwd(line []byte) (string, error) {
	cwd, ok := bytes.CutSuffix(line, []byte("\n"))
	if !ok || len(cwd) == 0 || cwd[0] != '/' || len(cwd) > files.MaxPath {
		return "", ErrMalformed
	}
	return string(cwd), nil
}

// parseExports reads the output of bash's "export -p": lines
//
//	declare -x NAME="VALUE"
//	declare -ix NAME=$'VALUE'
//	declare -x NAME
//
// The last form, and arrays, are not part of an environment.
func parseExports(text string) ([]string, error) {
	vars := make([]string, 0, 32)
	for text != "" {
		rest, ok := strings.CutPrefix(text, "declare -")
		if !ok {
			return nil, ErrMalformed
		}
		flags, rest, ok := strings.Cut(rest, " ")
		if !ok {
			return nil, ErrMalformed
		}
		end := strings.IndexAny(rest, "=\n")
		if end < 0 {
			return nil, ErrMalformed
		}
		name := rest[:end]
		if rest[end] == '\n' {
			text = rest[end+1:]
			continue
		}
		value, after, err := unquote(rest[end+1:])
		if err != nil {
			return nil, err
		}
		if Carries(name) && !strings.ContainsAny(flags, "aA") {
			vars = append(vars, name+"="+value)
		}
		text = after
	}
	return vars, nil
}

// unquote reads one value as bash prints it for reuse, to the end of its line: text in double
// quotes, or in $'…' (bash's sh_double_quote and ansic_quote).
func unquote(s string) (value, after string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); {
		switch {
		case s[i] == '\n':
			return b.String(), s[i+1:], nil
		case s[i] == '"':
			i, err = unquoteDouble(&b, s, i+1)
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '\'':
			i, err = unquoteANSI(&b, s, i+2)
		default: // only in arrays, which are dropped
			b.WriteByte(s[i])
			i++
		}
		if err != nil {
			return "", "", err
		}
	}
	return "", "", ErrMalformed
}

// unquoteDouble reads from the byte after the opening quote, and returns the position of the text
// after the closing quote.
func unquoteDouble(b *strings.Builder, s string, i int) (int, error) {
	for ; i < len(s); i++ {
		switch s[i] {
		case '"':
			return i + 1, nil
		case '\\':
			if i++; i == len(s) {
				return 0, ErrMalformed
			}
		}
		b.WriteByte(s[i])
	}
	return 0, ErrMalformed
}

// ansiEscapes are the letters of the escapes that bash writes besides octal escapes, and ansiBytes
// their values.
const (
	ansiEscapes = "abEfnrtv\\'\"?"
	ansiBytes   = "\a\b\x1b\f\n\r\t\v\\'\"?"
)

func unquoteANSI(b *strings.Builder, s string, i int) (int, error) {
	for ; i < len(s); i++ {
		switch s[i] {
		case '\'':
			return i + 1, nil
		case '\\':
			if i++; i == len(s) {
				return 0, ErrMalformed
			}
			if s[i] >= '0' && s[i] <= '7' {
				v, n := 0, 0
				for ; n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7'; n++ {
					v = v*8 + int(s[i+n]-'0')
				}
				if v == 0 || v > 255 {
					return 0, ErrMalformed
				}
				b.WriteByte(byte(v))
				i += n - 1
				continue
			}
			k := strings.IndexByte(ansiEscapes, s[i])
			if k < 0 {
				return 0, ErrMalformed
			}
			b.WriteByte(ansiBytes[k])
		default:
			b.WriteByte(s[i])
		}
	}
	return 0, ErrMalformed
}

// parseFunctions reads the output of bash's "export -fp": for each function its definition, from a
// line "name () ", and a line "declare -fx name".
func parseFunctions(text string) []string {
	var funs []string
	for text != "" {
		head, rest, ok := strings.Cut(text, " () \n{")
		if !ok || head == "" || strings.ContainsAny(head, "=\n/") {
			return funs
		}
		body, after, ok := strings.Cut(rest, "\ndeclare -fx "+head+"\n")
		if !ok {
			return funs
		}
		funs = append(funs, "BASH_FUNC_"+head+"%%=() {"+body)
		text = after
	}
	return funs
}

// Carries reports whether a variable is carried to the next step: its name must be a valid shell
// name (POSIX.1-2017, 3.235), and not a name that each shell sets for itself.
func Carries(name string) bool {
	for i, c := range []byte(name) {
		digit := c >= '0' && c <= '9'
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || digit && i > 0) {
			return false
		}
	}
	switch name {
	case "", "_", "SHLVL", "PWD":
		return false
	}
	return !strings.HasPrefix(name, "__turn_")
}
