package atnode

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// fill sets every field of v that JSON has to a value that is not zero. depth ends types that have
// themselves.
func fill(v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC)))
		return
	}
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes([]byte(`{"a":1}`))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("a <\u2028>\n\"")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7_000_000)
		if v.Type().Size() < 4 {
			v.SetInt(7)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth-1)
		}
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(v.Index(0), depth-1)
			fill(v.Index(1), depth-1)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), depth)
		}
	case reflect.Map:
		if depth > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(k, depth-1)
			fill(e, depth-1)
			v.SetMapIndex(k, e)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
				fill(v.Field(i), depth)
			}
		}
	}
}

// TestReportsRoundTrip decodes the JSON of each type of report into the same value. What JSON does
// not have is restored by package turnlog, or is a path of the node.
func TestReportsRoundTrip(t *testing.T) {
	for _, v := range []any{new([]turnstone.SessionInfo), new(turnstone.Graph), new(turnstone.Session),
		new(turnstone.TurnInfo), new(turnstone.TraceLine), new(turnstone.FileInfo),
		new(turnstone.StateDiff), new(turnstone.CompareReport), new(turnstone.Branch),
		new(turnstone.Tag), new(turnstone.MergeReport), new(turnstone.ExportReport),
		new(turnstone.ImportReport), new(turnstone.VerifyReport), new(turnstone.VerifiedTurn),
		new([]turnstone.LoggedHead), new(turnstone.ReplayReport), new(turnstone.RangeReport),
		new(turnstone.FrozenReport), new(turnstone.BisectReport), new(turnstone.GCReport),
		new(turnstone.FsckReport), new(turnstone.Usage), new([]turnstone.HomeInfo),
		new(turnstone.Template), new(turnstone.BuildEvent), new([]turnstone.Session),
		new(turnstone.TemplatePruned)} {
		fill(reflect.ValueOf(v).Elem(), 5)
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%T: %v", v, err)
		}
		again := reflect.New(reflect.TypeOf(v).Elem())
		if err := decode(text, again.Interface()); err != nil {
			t.Errorf("%T: %v", v, err)
		} else if !reflect.DeepEqual(v, again.Interface()) {
			b, _ := json.Marshal(again.Interface())
			t.Errorf("%T:\n%s\n%s", v, text, b)
		}
	}
}

// FuzzReports reads answers of a node: each is a report that can be printed as JSON again, or the
// error says that the node's answer is malformed.
func FuzzReports(f *testing.F) {
	for _, v := range []any{new(turnstone.TurnInfo), new(turnstone.Graph), new(turnstone.MergeReport)} {
		fill(reflect.ValueOf(v).Elem(), 2)
		text, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(text, '\n'))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		readReports[turnstone.TurnInfo](t, text)
		readReports[turnstone.Graph](t, text)
		readReports[turnstone.SessionInfo](t, text)
		readReports[turnstone.TraceLine](t, text)
		readReports[turnstone.MergeReport](t, text)
		readReports[turnstone.VerifyReport](t, text)
		readReports[turnstone.Template](t, text)
	})
}

func readReports[T any](t *testing.T, text []byte) {
	t.Helper()
	said := 0
	err := eachLine(bytes.NewReader(text), func(one T) error {
		said++
		_, err := json.Marshal(one)
		return err
	})
	if err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity ||
		said > bytes.Count(text, []byte("\n"))+1 {
		t.Errorf("%T: %d reports, %v", *new(T), said, err)
	}
}
