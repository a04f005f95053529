// Package terminaltest checks that what a program prints is harmless for a terminal.
package terminaltest

import (
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Hostile is a name that clears the screen, forges a line of turn's, and reverses the text.
const Hostile = "\x1b[2J\x1b[Hx\nturn: forged\r\x1b]0;t\x07\u009b31m\u202e\u2028\x7f\x00\xff"

// T is the part of testing.T and rapid.T that Harmless needs.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Harmless fails if text contains a sequence that a terminal obeys, or a line that Hostile has
// forged.
func Harmless(t T, where, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (!visible(r) || r == utf8.RuneError && !utf8.ValidString(text)) {
			t.Errorf("%s: %q in %q", where, r, text)
			return
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "turn: forged") {
			t.Errorf("%s: a forged line in %q", where, text)
		}
	}
}

// visible is the meaning of the word in package terminal, written a second time for the tests.
func visible(r rune) bool {
	bidi := unicode.Is(unicode.Bidi_Control, r)
	return !unicode.IsControl(r) && !bidi && r != '\u2028' && r != '\u2029'
}

// Filled returns a value with Hostile in each string, and two elements in each slice.
func Filled[V any]() *V {
	v := new(V)
	fill(reflect.ValueOf(v).Elem())
	return v
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() && v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(Hostile))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.String:
		v.SetString(Hostile)
	case reflect.Int, reflect.Int64:
		v.SetInt(3)
	}
}
