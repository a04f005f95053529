package secret

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// shellForms are the forms in which bash, dash and ash write a value down, without the quotes
// around it.
func shellForms(v string) []string {
	return append(wordForms(v),
		inSingle(v), strings.ReplaceAll(v, "'", `'"'"'`), ansiC(v, false), ansiC(v, true), doubleQuoted(v),
		backslashed(v, false), backslashed(v, true), escaped(v, `.[\()*+?{|^$`), // the last: [[ a =~ "$V" ]] under set -x
		eachBackslashed(v, func(string) int { return 1 }), eachBackslashed(v, func(rest string) int { _, n := utf8.DecodeRuneInString(rest); return n }))
}

// wordForms are what becomes of a value that the shell splits into words, which it then
// quotes one by one: by set -x, by printf %q, by ${a[@]@Q} and by declare -p. The words are
// looked for in a row only: single ones may be words that everybody uses.
func wordForms(v string) []string {
	words := strings.FieldsFunc(v, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' })
	if len(words) < 2 {
		return nil
	}
	last := len(words) - 1
	join := func(between string, quote func(i int, word string) string) string {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = quote(i, w)
		}
		return strings.Join(quoted, between)
	}
	forms := []string{join("\n", func(_ int, w string) string { return w })}
	for _, unprintable := range []func(r rune) bool{none, control, notASCII} {
		orC := func(w, quoted string) string {
			if strings.ContainsFunc(w, unprintable) {
				return "$'" + ansiC(w, strings.ContainsFunc("\u00e9", unprintable)) + "'"
			}
			return quoted
		}
		backslash := func(i int, w string) string {
			quoted := backslashed(w, true)
			if i > 0 { // before the first word something may stand
				quoted = leading(w) + quoted
			}
			return orC(w, quoted)
		}
		forms = append(forms, join(" ", backslash), join("\n", backslash),
			bare(join(" ", func(_ int, w string) string { return orC(w, singleQuoted(w)) })),
			join(" ", func(i int, w string) string { return fmt.Sprintf("[%d]=", i) + orC(w, `"`+doubleQuoted(w)+`"`) })[len("[0]="):])
		// What stands directly before the first word may need quotes that the word does not, or the
		// other way round, and so may what is behind the last one.
		for _, before := range []string{"", ";", "x"} {
			for _, behind := range []string{"", ";"} {
				forms = append(forms, bare(join(" ", func(i int, w string) string {
					around := w
					if i == 0 {
						around = before + around
					}
					if i == last {
						around += behind
					}
					switch {
					case around == "'":
						return singleQuoted(w)
					case needsQuotes(around):
						return "'" + inSingle(w) + "'"
					}
					return orC(w, w)
				})))
			}
		}
	}
	return forms
}

func none(rune) bool { return false }

func control(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }

func notASCII(r rune) bool { return control(r) || r >= utf8.RuneSelf }

// singleQuoted is what set -x and @Q write (lib/sh/shquote.c: sh_single_quote).
func singleQuoted(s string) string {
	if s == "'" {
		return `\'`
	}
	return "'" + inSingle(s) + "'"
}

func inSingle(s string) string { return strings.ReplaceAll(s, "'", `'\''`) }

// bare is s without the quotes at its ends, which may stand elsewhere.
func bare(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(s, "$'"), "'"), "'")
}

// needsQuotes tells whether set -x quotes a word (lib/sh/shquote.c: sh_contains_shell_metas).
func needsQuotes(s string) bool {
	return strings.ContainsAny(s, " \t\n'\"\\|&;()<>!{}*[?]^$`") || leading(s) != "" || strings.Contains(s, ":~") || strings.Contains(s, "=~")
}

// leading is what printf %q writes before a word for its first byte alone.
func leading(s string) string {
	if s[0] == '~' || s[0] == '#' {
		return `\`
	}
	return ""
}

// ansiC is what bash writes between $' and ' for a text with control characters, in messages
// and in what set -x prints (lib/sh/strtrans.c: ansic_quote). Bytes that are not ASCII are
// octal in the locale C.
func ansiC(s string, ascii bool) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if i := strings.IndexByte("\x1b\a\b\f\n\r\t\v\\'", c); i >= 0 {
			b.WriteByte('\\')
			b.WriteByte("Eabfnrtv\\'"[i])
		} else if c < ' ' || c == 0x7f || c >= utf8.RuneSelf && ascii {
			fmt.Fprintf(&b, "\\%03o", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// doubleQuoted is what declare -p, export -p, @A and @K write between double quotes
// (lib/sh/shquote.c: sh_double_quote).
func doubleQuoted(s string) string { return escaped(s, "$`\"\\") }

func escaped(s, chars string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if strings.IndexByte(chars, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// backslashed is what bash's printf %q writes (lib/sh/shquote.c: sh_backslash_quote), which
// with tilde is also escaped where an assignment would expand it. What it escapes at the very
// beginning only is not.
func backslashed(s string, tilde bool) string {
	var b strings.Builder
	for i, c := range []byte(s) {
		if strings.IndexByte("\t\n !\"$&'()*,;<>?[\\]^`{|}", c) >= 0 || tilde && c == '~' && i > 0 && (s[i-1] == ':' || s[i-1] == '=') {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// eachBackslashed is v with a backslash before each character, as set -x shows a quoted pattern of [[ ]]:
// of a byte or several, as the locale has it.
func eachBackslashed(v string, size func(rest string) int) string {
	var b strings.Builder
	for len(v) > 0 {
		n := size(v)
		b.WriteString(`\` + v[:n])
		v = v[n:]
	}
	return b.String()
}
