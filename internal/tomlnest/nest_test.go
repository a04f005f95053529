package tomlnest

import (
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestCheck(t *testing.T) {
	deep := strings.Repeat("[", Max+1)
	for text, ok := range map[string]bool{
		"":                             true,
		strings.Repeat("[a]\n", 1000):  true,
		strings.Repeat("a=1.5\n", 100): true,
		"a = [1.0, 2.0, {b.c = '[[[['}] # " + deep: true,
		"a = '" + deep + "'":                       true,
		`a = "\"` + deep + `"`:                     true,
		"a = '''\n" + deep + "'''":                 true,
		`a = """` + deep + `"` + deep + `\""""`:    true,
		"a = " + deep:                              false,
		"a = " + strings.Repeat("{a=", Max+1):      false,
		strings.Repeat("a . ", Max+2) + "b = 1":    false,
		strings.Repeat(`"."`, Max+2):               true, // no dots but in strings, and no TOML
		strings.Repeat(`"".`, Max+1) + "b = 1":     false,
		"[" + strings.Repeat("a.", Max+1) + "b]":   false,
		`a = ["""x"""", ` + deep:                   false,
		`a = ["""x""""", ` + deep:                  false,
		`a = ['''x'''', ` + deep:                   false,
		"a = \"\n" + deep:                          false,
		"a = \"\\\n" + deep:                        false,
		"a = ['\\', " + deep:                       false,
		"a = [\"\\\\\", " + deep:                   false,
		"# '\na = " + deep:                         false,
	} {
		if err := Check(text); (err == nil) != ok {
			t.Errorf("%.80q: %v", text, err)
		}
	}
}

// FuzzCheck: no text that passes has deeper values than it may, as the parser sees it.
func FuzzCheck(f *testing.F) {
	f.Add(`a.b = [{c = """x""""}, '''y''''', "\"["]`)
	f.Add("[[a.b]]\nc = '[' # ]\n'd'.e = 1.5")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4<<10 || Check(text) != nil {
			return
		}
		var tree map[string]any
		if _, err := toml.Decode(text, &tree); err != nil {
			return
		}
		// a header, a key and a value add up
		if n := depth(tree); n > 4*Max+4 {
			t.Errorf("%q has the depth %d", text, n)
		}
	})
}

func depth(v any) (most int) {
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			most = max(most, depth(x))
		}
	case []map[string]any:
		for _, x := range v {
			most = max(most, depth(x))
		}
	case []any:
		for _, x := range v {
			most = max(most, depth(x))
		}
	default:
		return 0
	}
	return most + 1
}
