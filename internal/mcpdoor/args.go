package mcpdoor

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/suggest"
)

// decode sets the fields of in, a pointer to a struct, to the arguments of a call. The errors are for
// a model, which knows the names of arguments and the types of JSON, but no types of Go.
func decode(b []byte, in any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		b = []byte("null")
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return argument("the arguments", "are %s, not an object", kindOf(b))
	}
	fields := fieldsOf(reflect.ValueOf(in).Elem())
	for _, name := range slices.Sorted(maps.Keys(all)) {
		field, ok := fields[name]
		if !ok {
			return unknown(name, slices.Sorted(maps.Keys(fields)))
		}
		if err := set(field, name, all[name]); err != nil {
			return err
		}
	}
	return nil
}

// argument returns the error about an argument.
func argument(name, format string, args ...any) *turnstone.Error {
	return turnstone.Errorf("mcp.call", turnstone.KindInvalid, name, format, args...)
}

// maxName bounds in bytes what an error repeats of a caller's word.
const maxName = 60

// mostEdits is how far a misspelt name may be from the one that was meant.
const mostEdits = 2

// unknown returns the error about an argument that a tool does not have.
func unknown(name string, known []string) error {
	err := argument(strconv.Quote(brief.Clip(name, maxName)), "is no argument of this tool")
	if meant, edits := suggest.Nearest(name, known); edits >= 0 && edits <= mostEdits {
		return err.WithHint("write " + meant)
	}
	return err.WithHint("the arguments are " + strings.Join(known, ", "))
}

// fieldsOf returns the fields of a struct by the names of their arguments.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = v.Field(i)
	}
	return fields
}

// set sets a field to an argument. null leaves it unset, as if the argument was missing.
func set(field reflect.Value, name string, b json.RawMessage) error {
	if field.Kind() == reflect.Int || field.Kind() == reflect.Int64 {
		b = integer(b)
	}
	wrong := func() error { return argument(name, "is %s, not %s", kindOf(b), wanted(field.Type())) }
	if _, coded := field.Interface().([]byte); coded && b[0] == '[' { // Go takes an array of numbers too
		return wrong()
	}
	err := json.Unmarshal(b, field.Addr().Interface())
	if err == nil {
		return nil
	}
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) { // the value is JSON, so it is a text of another form
		return argument(name, "is not base64")
	}
	if field.CanInt() || field.CanFloat() {
		f, err := strconv.ParseFloat(string(b), 64)
		if errors.Is(err, strconv.ErrRange) || err == nil && f == math.Trunc(f) {
			return argument(name, "is %s, which is too large", kindOf(b))
		}
	}
	return wrong()
}

// exact is the first whole number above which floating point skips some.
const exact = 1 << 53

// integer returns a whole number, which some clients write as 5.0 or 1e3, as Go's integers are
// written. Other values stay.
func integer(b json.RawMessage) json.RawMessage {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= exact {
		return b
	}
	return strconv.AppendInt(nil, int64(f), 10)
}

// wanted describes the values of an argument.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string of base64"
		}
		return "an array of strings"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a string"
}

// kindOf describes a value of JSON.
func kindOf(b json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return "no JSON"
	}
	all, list := v.([]any)
	if !list {
		return kind(v)
	}
	for _, e := range all {
		if _, text := e.(string); !text {
			return "an array with " + kind(e)
		}
	}
	return "an array"
}

func kind(v any) string {
	switch v := v.(type) {
	case string:
		return "a string"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return "the number " + brief.Clip(v.String(), maxName)
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	}
	return "null"
}
