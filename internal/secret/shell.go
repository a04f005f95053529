package secret

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// shellForms returns the forms in which bash, dash and ash print a value, without the surrounding
// quotes.
func shellForms(v string) []string {
	return append(wordForms(v),
		inSingle(v), strings.ReplaceAll(v, "'", `'"'"'`), ansiC(v, false),
		ansiC(v, true), doubleQuoted(v),
		// the last form: [[ a =~ "$V" ]] under set -x
		backslashed(v, false), backslashed(v, true), escaped(v, `.[\()*+?{|^$`),
		eachBackslashed(v, func(string) int { return 1 }),
		eachBackslashed(v, func(rest string) int {
			_,
				n := utf8.DecodeRuneInString(rest)
			return n
		}))
}

// wordForms returns the forms of a value that the shell splits into words and quotes word by word:
// set -x, printf %q, ${a[@]@Q} and declare -p. Only a sequence of words is searched because single
// words may be common.
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
			if i > 0 { // text may precede the first word
				quoted = leading(w) + quoted
			}
			return orC(w, quoted)
		}
		forms = append(forms, join(" ", backslash), join("\n", backslash),
			bare(join(" ", func(_ int, w string) string { return orC(w, singleQuoted(w)) })),
			join(" ", func(i int, w string) string {
				return fmt.Sprintf("[%d]=", i) +
					orC(w, `"`+doubleQuoted(w)+`"`)
			})[len("[0]="):])
		// The text directly before the first word can change whether quotes are necessary, and so
		// can the text after the last word.
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

// singleQuoted is the form of set -x and @Q (lib/sh/shquote.c: sh_single_quote).
func singleQuoted(s string) string {
	if s == "'" {
		return `\'`
	}
	return "'" + inSingle(s) + "'"
}

func inSingle(s string) string { return strings.ReplaceAll(s, "'", `'\''`) }

// bare returns s without the quotes at its ends, which may be in another place.
func bare(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(s, "$'"), "'"), "'")
}

// needsQuotes reports whether set -x quotes a word (lib/sh/shquote.c: sh_contains_shell_metas).
func needsQuotes(s string) bool {
	return strings.ContainsAny(s, " \t\n'\"\\|&;()<>!{}*[?]^$`") || leading(s) != "" ||
		strings.Contains(s, ":~") || strings.Contains(s, "=~")
}

// leading returns what printf %q writes before a word only because of its first byte.
func leading(s string) string {
	if s[0] == '~' || s[0] == '#' {
		return `\`
	}
	return ""
}

// ansiC is the form that bash writes between $' and ' for a text with control characters, in
// messages and under set -x (lib/sh/strtrans.c: ansic_quote). In the locale C, bytes other than
// ASCII are octal.
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

// doubleQuoted is the form between double quotes of declare -p, export -p, @A and @K
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

// backslashed is the form of bash's printf %q (lib/sh/shquote.c: sh_backslash_quote). With tilde it
// also escapes a tilde that an assignment would expand. Characters that are escaped only at the
// very beginning are not escaped.
func backslashed(s string, tilde bool) string {
	var b strings.Builder
	for i, c := range []byte(s) {
		if strings.IndexByte("\t\n !\"$&'()*,;<>?[\\]^`{|}", c) >= 0 || tilde && c == '~' &&
			i > 0 && (s[i-1] == ':' || s[i-1] == '=') {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// eachBackslashed returns v with a backslash before each character, as set -x shows a quoted
// pattern of [[ ]]; a character has one or several bytes, depending on the locale.
func eachBackslashed(v string, size func(rest string) int) string {
	var b strings.Builder
	for len(v) > 0 {
		n := size(v)
		b.WriteString(`\` + v[:n])
		v = v[n:]
	}
	return b.String()
}
