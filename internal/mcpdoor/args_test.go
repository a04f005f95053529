package mcpdoor

import (
	"reflect"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

// TestArguments: an error of arguments has the words of the caller, and no types of Go.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		in         any
		args, want string
	}{
		{&execIn{}, ``, ""},
		{&execIn{}, `null`, ""},
		{&execIn{}, `{"command":"x","cwd":null,"timeout":1.5}`, ""},
		{&execIn{}, `{"command":["ls","-l"]}`, "command: is an array, not a string"},
		{&execIn{}, `{"command":{"a":1}}`, "command: is an object, not a string"},
		{&execIn{}, `{"command":true}`, "command: is true, not a string"},
		{&execIn{}, `{"timeout":"5"}`, "timeout: is a string, not a number"},
		{&execIn{}, `{"timeout":1e999}`, "timeout: is the number 1e999, which is too large"},
		{&execIn{}, `{"timout":5}`, `"timout": is no argument of this tool; write timeout`},
		{&execIn{}, `{"Command":"x"}`, `"Command": is no argument of this tool; write command`},
		{&execIn{}, `{"cmd":"x"}`, `"cmd": is no argument of this tool; write cwd`},
		{&execIn{}, `{"":"x"}`, `"": is no argument of this tool; the arguments are branch, command, cwd, ` +
			`image, session, stdin, timeout`},
		{&execIn{}, `{"` + strings.Repeat("x", 1000) + `":1}`, `"` + strings.Repeat("x", maxName) + `…": is no ` +
			`argument of this tool; the arguments are branch, command, cwd, image, session, stdin, timeout`},
		{&execIn{}, `"ls"`, "the arguments: are a string, not an object"},
		{&execIn{}, `[{"command":"x"}]`, "the arguments: are an array with an object, not an object"},
		{&execIn{}, `7`, "the arguments: are the number 7, not an object"},
		{&execIn{}, `{"command"`, "the arguments: are no JSON, not an object"},
		{&readIn{}, `{"path":"x","offset":5.0,"limit":1e3}`, ""},
		{&readIn{}, `{"offset":1.5}`, "offset: is the number 1.5, not a whole number"},
		{&readIn{}, `{"offset":"1"}`, "offset: is a string, not a whole number"},
		{&readIn{}, `{"limit":99999999999999999999}`, "limit: is the number 99999999999999999999, which is too large"},
		{&readIn{}, `{"limit":1e999999999}`, "limit: is the number 1e999999999, which is too large"},
		{&readIn{}, `{"limit":[]}`, "limit: is an array, not a whole number"},
		{&writeIn{}, `{"text":5}`, "text: is the number 5, not a string"},
		{&writeIn{}, `{"base64":"a b"}`, "base64: is not base64"},
		{&writeIn{}, `{"base64":"AAA"}`, "base64: is not base64"},
		{&writeIn{}, `{"base64":[1,2]}`, "base64: is an array with the number 1, not a string of base64"},
		{&compareIn{}, `{"turns":"@1"}`, "turns: is a string, not an array of strings"},
		{&compareIn{}, `{"turns":["@1",2]}`, "turns: is an array with the number 2, not an array of strings"},
		{&compareIn{}, `{"turns":["@1",["@2"]]}`, "turns: is an array with an array, not an array of strings"},
		{&diffIn{}, `{"patch":"yes"}`, "patch: is a string, not true or false"},
		{&diffIn{}, `{"patch":0}`, "patch: is the number 0, not true or false"},
		{&mergeIn{}, `{"dry_run":"true"}`, "dry_run: is a string, not true or false"},
	} {
		got := ""
		if err := decode([]byte(c.args), c.in); err != nil {
			got = strings.TrimPrefix(err.Error(), "mcp.call: ")
			if hint := turnstone.HintOf(err); hint != "" {
				got += "; " + hint
			}
			if turnstone.KindOf(err) != turnstone.KindInvalid {
				t.Errorf("%s: the error is of kind %v", c.args, turnstone.KindOf(err))
			}
		}
		if got != c.want {
			t.Errorf("%T %.100s:\n got %s\nwant %s", c.in, c.args, got, c.want)
		}
	}
	in := readIn{}
	if err := decode([]byte(`{"path":"x","offset":5.0,"limit":1e3}`), &in); err != nil ||
		in != (readIn{Path: "x", Offset: 5, Limit: 1000}) {
		t.Errorf("%v, %+v", err, in)
	}
}

// inputs are the arguments of all tools.
func inputs() []any {
	return []any{&runIn{}, &execIn{}, &readIn{}, &writeIn{}, &listIn{}, &snapshotIn{}, &forkIn{}, &diffIn{},
		&mergeIn{}, &turnIn{}, &logIn{}, &compareIn{}}
}

// TestEveryArgument: each argument of each tool has a type that errors can describe.
func TestEveryArgument(t *testing.T) {
	for _, in := range inputs() {
		for name, f := range fieldsOf(reflect.ValueOf(in).Elem()) {
			for _, value := range []string{`{"a":{}}`, `[[[]]]`, `"\u0000\ud800"`, `-1`, `1e400`, `false`, `1.5`} {
				err := decode([]byte(`{"`+name+`":`+value+`}`), in)
				if err == nil {
					continue
				}
				if text := err.Error(); !strings.Contains(text, name+": is ") || strings.Contains(text, "json") ||
					strings.Contains(text, "Go ") || strings.Contains(text, f.Type().String()+" of") {
					t.Errorf("%T %s %s: %s", in, name, value, text)
				}
			}
		}
	}
}
