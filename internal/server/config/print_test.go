package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestTOML: what is printed sets each setting to what it is.
func TestTOML(t *testing.T) {
	for _, text := range []string{"", whole, "[listen]\naddress = \"off\"\n",
		"[node]\nname = \"a.b\"\nexpose = \"127.0.0.1\"\n", "roles = [\"node\"]\n[peers]\n" +
			"listen = \"unix:/n\"\naddress = \"unix:/m\"\ncontroller = \"unix:/c\"\n",
		"roles = [\"node\"]\n[peers]\nlisten = \"unix:/n\"\ncontroller = [\"unix:/c\", \"unix:/d\"]\n" +
			"[records]\ndatabase = \"postgres://u@/d?host=/run\"\npasswords = \"pass\"\n"} {
		c, err := Parse("/state", text, nil)
		check(t, err)
		printed, err := c.TOML()
		check(t, err)
		again, err := Parse("/elsewhere", printed, nil)
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Errorf("%v\n%+v\n%+v\n%s", err, c, again, printed)
		}
		for _, s := range configSettings() {
			if s.field.Tag.Get("default") != "" && !strings.Contains(printed, s.field.Tag.Get("toml")+" = ") {
				t.Errorf("%s is missing", s.key)
			}
		}
	}
}
