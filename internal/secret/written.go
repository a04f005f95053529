package secret

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Written returns a Set that also masks and finds the forms in which turn and the shell write a
// value: quoted as a string of Go, JSON or the shell, or for a URL, folded to a single line, and as
// valid UTF-8.
func (s *Set) Written() *Set {
	if s == nil {
		return nil
	}
	return s.written()
}

// Hosts returns a Set that also masks and finds values in lower case, the form of host names in
// lookups.
func (s *Set) Hosts() *Set {
	if s == nil {
		return nil
	}
	return s.hosts()
}

// with returns s with further forms of its values.
func (s *Set) with(forms func(value string) []string) *Set {
	w := &Set{env: s.env, needles: slices.Clone(s.needles)}
	have := map[string]bool{}
	for _, n := range s.needles {
		have[string(n.value)] = true
	}
	for _, n := range s.needles {
		for _, form := range forms(string(n.value)) {
			if len(form) >= minValue && !have[form] {
				have[form] = true
				w.add(n.name, form)
			}
		}
	}
	if len(w.needles) == len(s.needles) {
		return s
	}
	w.seal()
	return w
}

func writtenForms(value string) []string {
	unquote := func(s string) string { return strings.TrimSuffix(strings.TrimPrefix(s, `"`), `"`) }
	all := []string{value}
	for _, v := range []string{strings.ToValidUTF8(value, "\uFFFD"), eachInvalid(value),
		strings.Join(strings.Fields(value), " ")} {
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	for _, v := range slices.Clone(all) {
		all = append(all, unquote(strconv.Quote(v)), unquote(strconv.QuoteToASCII(v)),
			unquote(jsonOf(v, true)), unquote(jsonOf(v, false)),
			url.QueryEscape(v), url.PathEscape(v), strings.ReplaceAll(v, "\n", `\n`),
			strings.ReplaceAll(v, "\n", " "))
		all = append(all, shellForms(v)...)
	}
	return all
}

// eachInvalid is encoding/json's replacement of invalid UTF-8.
func eachInvalid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

func jsonOf(s string, html bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	_ = enc.Encode(s) // encoding a string into a buffer cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}
