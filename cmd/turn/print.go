package main

import (
	"fmt"
	"io"
	"reflect"
	"unicode/utf8"
)

// turn prints its own text through putf and putln. Their arguments are untrusted: a guest chooses
// names of files, functions and processes, a document chooses titles and names of steps. None of
// them can move the cursor, end the line, or reverse the direction of writing. A step's output goes
// through a sanitizer. A test rejects other ways to print.

// putf is fmt.Fprintf with arguments that are made printable. The format is turn's own.
func putf(w io.Writer, format string, args ...any) (int, error) {
	for i := range args {
		args[i] = shown(args[i])
	}
	return fmt.Fprintf(w, format, args...)
}

// putln is fmt.Fprintln with arguments that are made printable.
func putln(w io.Writer, args ...any) (int, error) {
	for i := range args {
		args[i] = shown(args[i])
	}
	return fmt.Fprintln(w, args...)
}

// plural is "1 one", or "2 many".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// own is turn's own text, which goes to a terminal unchanged, with its colors.
type own string

// shown returns v in a form that putf may print: numbers unchanged, everything else as text.
func shown(v any) any {
	switch v := v.(type) {
	case own:
		return string(v)
	case error:
		return printable(v.Error())
	}
	switch k := reflect.ValueOf(v).Kind(); {
	case k == reflect.String:
		return printable(fmt.Sprint(v))
	case k >= reflect.Bool && k <= reflect.Complex128:
		return v // its String method, if there is one, returns only words of the program
	}
	return printable(fmt.Sprint(v))
}

// A jsonWriter writes JSON in which invisible characters are \u escapes: encoding/json keeps DEL,
// the C1 controls and the bidirectional controls, which a terminal obeys. It needs whole characters
// in each Write, as an Encoder makes them.
type jsonWriter struct{ w io.Writer }

// Write implements io.Writer.
func (j jsonWriter) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p))
	for i := 0; i < len(p); {
		r, size := utf8.DecodeRune(p[i:])
		if r >= 0x7f && !visible(r) {
			out = fmt.Appendf(out, `\u%04x`, r) // all of them are in the first plane
		} else {
			out = append(out, p[i:i+size]...)
		}
		i += size
	}
	if _, err := j.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
