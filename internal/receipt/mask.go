package receipt

import (
	"bytes"
	"reflect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/secret"
)

// Secrets are kept out of a turn's texts twice. The guest's data is masked in its original form, in
// each of its fields, before it is cut, quoted or folded: maskAll. And a receipt, a record or a
// recording is searched before it is kept, so that a text that was missed, or reassembled, is left
// out: receipt, LeakIn.

// eachText calls f for each text that is reachable from v, which must be a pointer. Digests and
// IDs, which have their own types, are excluded: they contain a value only by chance.
func eachText(v reflect.Value, f func(v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachText(v.Elem(), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				eachText(v.Field(i), f)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			f(v)
			return
		}
		for i := range v.Len() {
			eachText(v.Index(i), f)
		}
	case reflect.Map:
		eachInMap(v, f)
	case reflect.String:
		if v.Type().PkgPath() != vocabulary {
			f(v)
		}
	}
}

// vocabulary is the package of the types whose values turn creates itself, or has parsed.
var vocabulary = reflect.TypeFor[turnstone.Digest]().PkgPath()

// eachInMap is eachText for a map, whose keys and values cannot be set in place.
func eachInMap(v reflect.Value, f func(v reflect.Value)) {
	for _, key := range v.MapKeys() {
		k, e := reflect.New(key.Type()).Elem(), reflect.New(v.Type().Elem()).Elem()
		k.Set(key)
		e.Set(v.MapIndex(key))
		eachText(k, f)
		eachText(e, f)
		v.SetMapIndex(key, reflect.Value{})
		v.SetMapIndex(k, e)
	}
}

// change replaces a text that eachText has found.
func change(v reflect.Value, to func(text string) string) {
	text := textOf(v)
	changed := to(text)
	switch {
	case changed == text || !v.CanSet():
	case v.Kind() == reflect.String:
		v.SetString(changed)
	default:
		v.SetBytes([]byte(changed))
	}
}

func textOf(v reflect.Value) string {
	if v.Kind() == reflect.String {
		return v.String()
	}
	return string(v.Bytes())
}

// maskAll masks all texts that are reachable from the pointer v, including those of fields that
// types get later.
func maskAll(secrets *secret.Set, v any) {
	if secrets != nil {
		eachText(reflect.ValueOf(v), func(v reflect.Value) { change(v, secrets.Mask) })
	}
}

// LeakIn returns the name of a secret whose value is in a text that is reachable from v, or "".
func LeakIn(secrets *secret.Set, v any) (name string) {
	if secrets == nil {
		return ""
	}
	eachText(reflect.ValueOf(v), func(v reflect.Value) {
		if name == "" {
			name = secrets.In(textOf(v))
		}
	})
	return name
}

// maskReport removes secrets from the data about a step's commands. It omits the positions of their
// outputs, because these differ in the masked streams, and the digest of an input, from which a
// short value could be guessed.
func maskReport(secrets *secret.Set, rep *trace.Report) {
	if secrets == nil {
		return
	}
	words := func(s string) string {
		if len(s) > trace.MaxText-len("\uFFFD") { // truncated, maybe within a value
			return secrets.MaskCut(s)
		}
		return secrets.Mask(s)
	}
	for i := range rep.Records {
		r := &rep.Records[i]
		r.Words, r.Stdout, r.Stderr, r.Stdin.Digest = words(r.Words), trace.Range{},
			trace.Range{}, ""
	}
	for i := range rep.Sites {
		rep.Sites[i].Words = words(rep.Sites[i].Words)
	}
	maskAll(secrets, rep)
}

// blankResult returns res with the guest's words replaced: a receipt of the result contains only
// turn's own words.
func blankResult(res document.StepResult) document.StepResult {
	cmds := append([]document.CommandRow(nil), res.Commands...)
	if res.Commands != nil && cmds == nil {
		cmds = []document.CommandRow{}
	}
	failures := append([]document.CommandFailure(nil), res.Failures...)
	res.Commands, res.Failures = cmds, failures
	if res.Network != nil {
		n := *res.Network
		n.Refused = append([]document.NetworkRefusal(nil), n.Refused...)
		res.Network = &n
	}
	res.Stdout.Head, res.Stdout.Tail = bytes.Clone(res.Stdout.Head), bytes.Clone(res.Stdout.Tail)
	res.Stderr.Head, res.Stderr.Tail = bytes.Clone(res.Stderr.Head), bytes.Clone(res.Stderr.Tail)
	files := [2]string{res.Stdout.File, res.Stderr.File}
	eachText(reflect.ValueOf(&res), func(v reflect.Value) { change(v, blank) })
	res.Stdout.File, res.Stderr.File = files[0], files[1]
	return res
}

func blank(s string) string {
	if s == "" {
		return ""
	}
	return "x"
}
