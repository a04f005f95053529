package transcript

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"turnstone.dev/turnstone/internal/lazyregexp"
)

var (
	bareWord = lazyregexp.New(`^[A-Za-z0-9_./:=@%+,-]+$`)
	variable = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// ofShell are the words that bash does not look up as a program, except those whose program does the
// same.
var ofShell = strings.Fields(`. : alias bg bind break builtin caller cd command compgen complete
	compopt continue declare dirs disown enable eval exec exit export fc fg getopts hash help history
	jobs let local logout mapfile popd pushd read readarray readonly return set shift shopt source
	suspend times trap type typeset ulimit umask unalias unset wait if then else elif fi case esac
	for select while until do done in function time coproc`)

// Quote returns s as one word of bash.
func Quote(s string) string {
	switch {
	case bareWord.MatchString(s):
		return s
	case plainText(s):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return ansiC(s)
}

// plainText reports whether a document shows s as it is: Markdown changes other characters, or a
// reader cannot see them.
func plainText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == utf8.RuneError {
			return false
		}
	}
	return true
}

// ansiC returns s in the form $'…', in ASCII.
func ansiC(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// simpleCommand returns a program, its arguments and the variables added to its environment as a
// command of bash.
func simpleCommand(argv, env []string) string {
	var assign, words, other []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if variable.MatchString(name) {
			assign = append(assign, name+"="+quoteValue(value))
		} else {
			other = append(other, kv)
		}
	}
	if len(other) > 0 { // bash has no variables of such names
		if len(argv) > 0 && strings.Contains(argv[0], "=") { // env takes it for a variable
			argv = slices.Concat([]string{"bash", "-c", `exec -- "$0" "$@"`}, argv)
		}
		argv = slices.Concat([]string{"env"}, other, argv)
	}
	for _, arg := range argv {
		words = append(words, Quote(arg))
	}
	if len(words) == 0 {
		return ":"
	}
	if program := argv[0]; !bareWord.MatchString(program) || strings.Contains(program, "=") ||
		slices.Contains(ofShell, program) {
		return "( " + strings.Join(slices.Concat(assign, []string{"exec", "--"}, words), " ") + " )"
	}
	return strings.Join(slices.Concat(assign, words), " ")
}

// quoteValue returns the value of an assignment.
func quoteValue(s string) string {
	if s == "" {
		return ""
	}
	return Quote(s)
}

// shortInput is the size up to which an input is an argument of printf.
const shortInput = 200

// input returns what gives a command its standard input: before it, after it, and on the lines after
// the command.
func input(data []byte) (before, after, lines string) {
	text := string(data)
	switch {
	case text == "":
		return "", "", ""
	case plainText(text) && strings.HasSuffix(text, "\n"):
		end := "END"
		for strings.Contains("\n"+text, "\n"+end+"\n") {
			end += "_"
		}
		return "", " <<'" + end + "'", "\n" + text + end
	case len(text) <= shortInput && !strings.Contains(text, "\x00"):
		return "printf %s " + Quote(text) + " | ", "", ""
	}
	code := base64.StdEncoding.EncodeToString(data)
	var b strings.Builder
	for len(code) > 0 {
		n := min(76, len(code))
		b.WriteString("\n" + code[:n])
		code = code[n:]
	}
	return "base64 -d <<'END' | ", "", b.String() + "\nEND"
}

// shellScript returns the text of a step of the shell, as a text that Markdown keeps.
func shellScript(s, language string) string {
	switch {
	case plainText(s):
		return s
	case language == "bash":
		return "eval " + ansiC(s)
	}
	var b strings.Builder // sh has no $'…'
	for i := range len(s) {
		fmt.Fprintf(&b, `\%03o`, s[i])
	}
	return `eval "$(printf '` + b.String() + `')"`
}

// comment returns the beginning of a text as one line.
func comment(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == '`' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return strings.TrimSpace(s) + " …"
}
