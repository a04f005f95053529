package agent

import (
	"bytes"
	"errors"
	"slices"
	"strings"
)

// A capture is what a step's shell left for the next.
type capture struct {
	cwd  string
	vars []string // NAME=VALUE
	funs []string // exported functions, as bash passes them: BASH_FUNC_name%%=() {…
}

var errCapture = errors.New("malformed capture")

// parseCapture reads the file that a prelude writes: the working directory and a
// newline; NAME=VALUE for each variable; and from bash an empty entry and the
// output of "export -fp". A NUL ends each. Entries whose name is not a shell's
// are dropped.
func parseCapture(data []byte) (capture, error) {
	var c capture
	cwd, rest, ok := bytes.Cut(data, []byte("\n\x00"))
	if !ok || len(cwd) == 0 || cwd[0] != '/' || len(cwd) > maxPath || bytes.IndexByte(cwd, 0) >= 0 {
		return c, errCapture
	}
	c.cwd = string(cwd)
	for len(rest) > 0 {
		var entry []byte
		if entry, rest, ok = bytes.Cut(rest, []byte{0}); !ok {
			return capture{}, errCapture // cut off
		}
		if len(entry) == 0 {
			break
		}
		name, _, ok := bytes.Cut(entry, []byte("="))
		if ok && isName(name) && !perShell(string(name)) {
			c.vars = append(c.vars, string(entry))
		}
	}
	c.funs = parseFunctions(string(bytes.TrimSuffix(rest, []byte{0})))
	return c, nil
}

// parseFunctions reads the output of bash's "export -fp": for each function its
// definition, from a line "name () ", and a line "declare -fx name".
func parseFunctions(text string) []string {
	var funs []string
	for text != "" {
		head, rest, ok := strings.Cut(text, " () \n{")
		if !ok || head == "" || strings.ContainsAny(head, "=\n\x00/") {
			return funs
		}
		body, after, ok := strings.Cut(rest, "\ndeclare -fx "+head+"\n")
		if !ok || strings.Contains(body, "\x00") {
			return funs
		}
		funs = append(funs, "BASH_FUNC_"+head+"%%=() {"+body)
		text = after
	}
	return funs
}

// session returns the session's environment after the step.
func (c capture) session(before []string, language string) []string {
	env := slices.Clone(c.vars)
	if language == "bash" {
		return append(env, c.funs...)
	}
	// sh drops what it cannot name, so the functions are as they were.
	for _, kv := range before {
		if strings.HasPrefix(kv, "BASH_FUNC_") {
			env = append(env, kv)
		}
	}
	return env
}

// isName says whether b is a shell variable's name (POSIX.1-2017, 3.235).
func isName(b []byte) bool {
	for i, c := range b {
		digit := c >= '0' && c <= '9'
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || digit && i > 0) {
			return false
		}
	}
	return len(b) > 0
}

// perShell names the variables that each shell sets for itself.
func perShell(name string) bool {
	switch name {
	case "_", "SHLVL", "PWD":
		return true
	}
	return strings.HasPrefix(name, "__turn_")
}
