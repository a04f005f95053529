package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/terminal/terminaltest"
)

// For any arguments, the output is one line without invisible characters.
func TestPrintf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Just(terminaltest.Hostile),
			rapid.Map(rapid.SliceOf(rapid.Byte()),
				func(b []byte) string { return string(b) })).Draw(t, "text")
		var b bytes.Buffer
		_, _ = Printf(&b, "%s %v %v %d %q\n", text, errors.New(text), []string{text}, 3, text)
		_, _ = Println(&b, text, turnstone.TurnID(text), struct{ a string }{text})
		terminaltest.Harmless(t, "Printf", b.String())
		if strings.Count(b.String(), "\n") != 2 {
			t.Fatalf("%q", b.String())
		}
	})
	var b bytes.Buffer
	_, _ = Printf(&b, "%5d %s %s", turnstone.Bytes(7), time.Second, own("\x1b[1mx"))
	if got := b.String(); got != "    7 1s \x1b[1mx" {
		t.Errorf("%q", got)
	}
}

// JSON has the same value after terminal controls have become escapes.
func TestJSONShowsItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := map[string]string{"a": strings.ToValidUTF8(rapid.OneOf(rapid.String(),
			rapid.Just(terminaltest.Hostile)).Draw(t, "text"), "")}
		for _, indent := range []string{"", "  "} {
			b, err := JSON(in, indent)
			if err != nil {
				t.Fatal(err)
			}
			terminaltest.Harmless(t, "JSON", string(b))
			var out map[string]string
			if err := json.Unmarshal(b, &out); err != nil || !reflect.DeepEqual(in, out) {
				t.Fatalf("%v, %q is %q", err, in, out)
			}
		}
	})
}
