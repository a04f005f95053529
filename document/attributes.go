package document

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/brief"
)

// maxName bounds the length of a step's name in bytes.
const maxName = 64

// attributes are the known attributes in the order of the docs.
var attributes = []string{"name", "timeout", "cwd", "skip", "continue-on-error", "unparsed"}

func isShell(word string) bool { return word == "bash" || word == "sh" }

// firstWord returns the language of an info string: everything before a blank or brace.
func firstWord(info string) string {
	if i := strings.IndexAny(info, " \t{"); i >= 0 {
		return info[:i]
	}
	return info
}

// An attribute is a key of an info string.
type attribute struct {
	key      string
	value    string
	hasValue bool
	at       int    // offset of the key in the info string
	foreign  bool   // for other tools
	near     string // the known attribute that is most similar
}

// splitAttributes reads "key", "key=value" and "key='a value'", separated by blanks. Braces may
// enclose some of them. On a fault it returns the fault's offset. Attributes of other tools may have
// any form.
func splitAttributes(info string, from int) (attrs []attribute, fault string, at int) {
	end := len(strings.TrimRight(info, " \t"))
	for i := skipBlanks(info, from, end); i < end; i = skipBlanks(info, i, end) {
		if info[i] != '{' {
			a, next, fault := readAttribute(info[:end], i)
			if fault != "" {
				return nil, fault, next
			}
			attrs, i = append(attrs, a), next
			continue
		}
		closed := closingBrace(info[:end], i)
		if closed < 0 {
			return nil, "the brace is not closed", i
		}
		for i = skipBlanks(info, i+1, closed); i < closed; i = skipBlanks(info, i, closed) {
			a, next, fault := readAttribute(info[:closed], i)
			if fault != "" {
				return nil, fault, next
			}
			attrs, i = append(attrs, a), next
		}
		i = closed + 1
	}
	return attrs, "", 0
}

// closingBrace returns the offset of the first closing brace after offset i that is not in quotes, or
// -1. A quote inside a word is an apostrophe.
func closingBrace(info string, i int) int {
	for at := i + 1; at < len(info); at++ {
		switch c := info[at]; {
		case c == '}':
			return at
		case isQuote(c) && strings.IndexByte(" \t{=,[", info[at-1]) >= 0:
			if end := closingQuote(info, at); end > 0 {
				at = end
			}
		}
	}
	return -1
}

func isQuote(c byte) bool { return c == '"' || c == '\'' }

// closingQuote returns the offset of the quote that closes the one at offset i, or 0. A backslash
// escapes a quote.
func closingQuote(info string, i int) int {
	for at := i + 1; at < len(info); at++ {
		switch info[at] {
		case '\\':
			at++
		case info[i]:
			return at
		}
	}
	return 0
}

// word returns the end of another tool's word at offset i: the next blank outside quotes. An unclosed
// quote extends to the end of the info string.
func word(info string, i int) int {
	if i < len(info) && isQuote(info[i]) {
		if i = closingQuote(info, i); i == 0 {
			return len(info)
		}
	}
	for i < len(info) && info[i] != ' ' && info[i] != '\t' {
		i++
	}
	return i
}

// readAttribute reads the attribute at offset i of an info string. On a fault next is its offset.
func readAttribute(info string, i int) (a attribute, next int, fault string) {
	a.at = i
	if end := word(info, i); isQuote(info[i]) || info[i:end] == "=" {
		a.key, a.foreign = info[i:end], true
		return a, end, ""
	}
	for i < len(info) && !strings.ContainsRune(" \t=", rune(info[i])) {
		i++
	}
	if a.key = info[a.at:i]; a.key == "" {
		return a, a.at, `a value without a name before "="`
	}
	near, ours := misspelling(a.key, attributes)
	a.foreign, a.near = !ours, near
	if i == len(info) || info[i] != '=' {
		return a, i, ""
	}
	a.hasValue = true
	if a.foreign {
		next = word(info, i+1)
		// Some tools separate attributes by commas. Ignoring a known one would remove a setting.
		for i, w := range strings.FieldsFunc(info[a.at:next], func(r rune) bool { return r == ',' || r == ';' }) {
			if key, _, _ := strings.Cut(w, "="); i > 0 && slices.Contains(attributes, key) {
				a.key, a.foreign, a.near = w, false, key
			}
		}
		return a, next, ""
	}
	a.value, next, fault = attributeValue(info, i+1)
	return a, next, fault
}

func attributeValue(info string, i int) (value string, next int, fault string) {
	if i < len(info) && (info[i] == '"' || info[i] == '\'') {
		n := strings.IndexByte(info[i+1:], info[i])
		if n < 0 {
			return "", i, "the quote is not closed"
		}
		next = i + 1 + n + 1
		if next < len(info) && info[next] != ' ' && info[next] != '\t' {
			return "", next, "a blank is missing after the closing quote"
		}
		return info[i+1 : i+1+n], next, ""
	}
	next = i
	for next < len(info) && info[next] != ' ' && info[next] != '\t' {
		if info[next] == '"' || info[next] == '\'' {
			return "", next, "a quote in the middle of a value"
		}
		next++
	}
	return info[i:next], next, ""
}

func skipBlanks(s string, i, end int) int {
	for i < end && (s[i] == ' ' || s[i] == '\t') {
		i++
	}
	return i
}

// readAttributes sets s from its info string, which begins at offset base.
func (p *docParser) readAttributes(s *Step, info string, base int) {
	attrs, fault, at := splitAttributes(info, len(s.Language))
	if fault != "" {
		p.errorAt(base+at, fault+" in the attributes of this step",
			"write attributes such as name=train timeout=90s cwd=\"a folder\" skip")
		return
	}
	seen := map[string]bool{}
	for _, a := range attrs {
		if a.foreign {
			p.ignore(s.Line, a.key)
			continue
		}
		if seen[a.key] {
			p.errorAt(base+a.at, fmt.Sprintf("attribute %q is given twice", a.key),
				"remove one of them")
			continue
		}
		seen[a.key] = true
		if msg, hint := p.setAttribute(s, a); msg != "" {
			p.errorAt(base+a.at, msg, hint)
		}
	}
}

func (p *docParser) setAttribute(s *Step, a attribute) (msg, hint string) {
	var err error
	switch a.key {
	case "name":
		s.Name = a.value
		if fault := nameFault(a.value); fault != "" {
			return fault, "use letters, digits, \".\", \"_\" and \"-\", beginning with a letter, " +
				"a digit or \"_\""
		}
	case "timeout":
		if s.Timeout, err = parseTimeout(a.value); err != nil {
			return "timeout: " + err.Error(),
				"write a number and a unit, such as timeout=90s or timeout=5m"
		}
	case "cwd":
		if s.Cwd, err = p.resolveCwd(a.value); err != nil {
			return "cwd: " + err.Error(),
				"write cwd=/a/folder, or cwd=folder for a folder below the document's cwd"
		}
	case "skip":
		s.Skip, err = parseFlag(a)
	case "continue-on-error":
		s.ContinueOnError, err = parseFlag(a)
	case "unparsed":
		s.Unparsed, err = parseFlag(a)
	default:
		return fmt.Sprintf("unknown attribute %q; the nearest known one is %q",
				brief.Clip(a.key, maxName), a.near),
			"known attributes: " + strings.Join(attributes, ", ")
	}
	if err != nil {
		return err.Error(), "write " + a.key + ", " + a.key + "=true or " + a.key + "=false"
	}
	return "", ""
}

func nameFault(name string) string {
	ok := name != "" && len(name) <= maxName && name[0] != '.' && name[0] != '-'
	for _, c := range []byte(name) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = ok && (alnum || c == '.' || c == '_' || c == '-')
	}
	switch {
	case name == "":
		return "the name is empty"
	case len(name) > maxName:
		return fmt.Sprintf("the name is longer than %d bytes", maxName)
	case !ok:
		return fmt.Sprintf("%q cannot be the name of a step", name)
	}
	return ""
}

func parseFlag(a attribute) (bool, error) {
	switch {
	case !a.hasValue, a.value == "true":
		return true, nil
	case a.value == "false":
		return false, nil
	}
	return false, fmt.Errorf("%s: %q is neither true nor false", a.key,
		brief.Clip(a.value, maxName))
}

// parseTimeout reads a Go duration. A number without a unit is rejected: some tools count seconds
// and others minutes, so a guess would be wrong for some authors.
func parseTimeout(s string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%q has no unit", brief.Clip(s, maxName))
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration", brief.Clip(s, maxName))
	case d <= 0:
		return 0, fmt.Errorf("%q is not greater than zero", brief.Clip(s, maxName))
	}
	return d, nil
}

// resolveCwd returns an absolute path: a relative path is below the document's cwd.
func (p *docParser) resolveCwd(dir string) (string, error) {
	switch {
	case dir == "":
		return "", fmt.Errorf("the path is empty")
	case strings.ContainsRune(dir, 0):
		return "", fmt.Errorf("the path contains a NUL byte")
	case len(dir) > 4095: // Linux' PATH_MAX without the final NUL
		return "", fmt.Errorf("the path is longer than 4095 bytes")
	case path.IsAbs(dir):
		return path.Clean(dir), nil
	}
	base := p.doc.Front.Cwd
	if base == "" {
		base = DefaultCwd
	}
	return path.Join(base, dir), nil
}
