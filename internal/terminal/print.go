// Package terminal prints text of documents and guests so that a terminal obeys none of it, and
// shows the progress of a turn. Everything that turn prints goes through this package.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"unicode/utf8"
)

// turn prints its own text through Printf and Println. Their arguments are untrusted: a guest
// chooses names of files, functions and processes, a document chooses titles and names of steps.
// None of them can move the cursor, end the line, or reverse the direction of writing. A step's
// output goes through a sanitizer. A test rejects other ways to print.

// Printf is fmt.Fprintf with arguments that are made printable. The format is turn's own.
func Printf(w io.Writer, format string, args ...any) (int, error) {
	for i := range args {
		args[i] = shown(args[i])
	}
	return fmt.Fprintf(w, format, args...)
}

// Println is fmt.Fprintln with arguments that are made printable.
func Println(w io.Writer, args ...any) (int, error) {
	for i := range args {
		args[i] = shown(args[i])
	}
	return fmt.Fprintln(w, args...)
}

// own is turn's own text, which goes to a terminal unchanged, with its colors.
type own string

// shown returns v in a form that Printf may print: numbers unchanged, everything else as text.
func shown(v any) any {
	switch v := v.(type) {
	case own:
		return string(v)
	case error:
		return Printable(v.Error())
	}
	switch k := reflect.ValueOf(v).Kind(); {
	case k == reflect.String:
		return Printable(fmt.Sprint(v))
	case k >= reflect.Bool && k <= reflect.Complex128:
		return v // its String method, if there is one, returns only words of the program
	}
	return Printable(fmt.Sprint(v))
}

// JSON returns v as JSON with a line break at the end. Invisible characters are \u escapes.
func JSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(jsonWriter{&b})
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
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
